"""How much memory there is, and sizes for people."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from onespike.errors import UsageError

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def available(device: torch.device) -> int | None:
    """Bytes that may still be taken on a device; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limits = [_of_system(), _of_group()]
    return min((limit for limit in limits if limit is not None), default=None)


def _of_system() -> int | None:
    """What Linux expects to be able to give out without swapping."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    line = re.search(r"MemAvailable:\s+(\d+) kB", text)
    return None if line is None else 1024 * int(line[1])


def _of_group(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What the container or the batch job of this process may still take."""
    try:
        limit, used, details = (
            (folder / f"memory.{name}").read_text(encoding="ascii") for name in ("max", "current", "stat")
        )
        cached = re.search(r"^inactive_file (\d+)$", details, re.M)
        return int(limit) - int(used) + (int(cached[1]) if cached else 0)
    except (OSError, ValueError):  # no such group, or one without a limit ("max")
        return None


def parse_size(text: str) -> int:
    """Bytes of a size.

    >>> parse_size("1.5GB"), parse_size("200 mb")
    (1500000000, 200000000)
    """
    parts = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([KMGT]B)", text.strip().upper())
    size = int(float(parts[1]) * UNITS[parts[2]]) if parts else 0
    if size <= 0:
        raise UsageError(f"{text!r} is no size of memory. Write for example 8GB or 500MB.")
    return size


def in_words(size: float) -> str:
    """A size for people.

    >>> in_words(3_422_000_000), in_words(999_999), in_words(12)
    ('3.42 GB', '1.00 MB', '0.01 KB')
    """
    unit = next((name for name, least in reversed(UNITS.items()) if size >= 0.9995 * least), "KB")
    return f"{size / UNITS[unit]:.2f} {unit}"
