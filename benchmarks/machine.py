"""The processor that figures belong to."""

from __future__ import annotations

import os
import platform
from pathlib import Path

FEATURES = ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
"""What matters to these kernels and to those they are compared with, as Linux names it."""


def processor() -> str:
    """The processor's name and those of its features that matter here, as far as the system tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    has = set((said.get("flags") or said.get("Features") or "").split())
    name = said.get("model name", platform.machine())
    return f"{name}, {os.cpu_count()} cores; {' '.join(f for f in FEATURES if f in has) or 'none of ' + ' '.join(FEATURES)}"
