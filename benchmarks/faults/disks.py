"""Disks that are full, small or read-only, and outputs that take nothing: a message, nothing half-written, nothing lost."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

from commands import Outcome, result_of, run
from damaged import Fault, half_written
from kills import PROGRAM, SCENARIOS, WHOLE, Scenario, _digests, _losses, _prepare

NOBODY = 65534
WRITING = tuple(s for s in SCENARIOS if s.words[0] not in ("inspect", "list", "serve", "push"))


def _limited(size: int) -> Callable[[], None]:
    """No file may grow beyond this: the system then answers as a full disk does."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _nobody() -> None:
    """A user who may read here and not write; root may write everywhere."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def _ascii() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="ascii", errors="strict")


def _closed() -> None:
    """As a shell's `>&-` leaves it: no descriptor, and Python starts without the stream."""
    os.close(1)
    sys.stdout = None


def _silent() -> None:
    os.close(2)
    sys.stderr = None


def limited(chosen: Scenario, folder: Path, rng: Random) -> tuple[str, Outcome]:
    size = rng.choice((0, 1, 100, 1000, 5000, 20_000, 60_000))
    return f"files of at most {size} bytes", run(chosen.words, folder, before=_limited(size), seconds=600)


def read_only(chosen: Scenario, folder: Path, rng: Random) -> tuple[str, Outcome]:
    places = [folder, *(p for p in folder.rglob("*") if p.is_dir())]
    for place in (*places, *(p.parent for p in (folder, folder.parent))):
        place.chmod(0o755)
    for place in places:
        place.chmod(0o555)
    outcome = run(chosen.words, folder, before=_nobody, seconds=600)
    for place in places:
        place.chmod(0o755)
    return "a read-only folder", outcome


def device(chosen: Scenario, folder: Path, rng: Random) -> tuple[str, Outcome]:
    """`--json /dev/full`, or where there is no such option, standard output on it."""
    words = tuple("/dev/full" if word == "out.json" else word for word in chosen.words)
    if words != chosen.words:
        return "--json /dev/full", run(words, folder, seconds=600)
    return "standard output on /dev/full", run(words, folder, output="/dev/full", seconds=600)


def printed(chosen: Scenario, folder: Path, rng: Random) -> tuple[str, Outcome]:
    what, before = rng.choice(
        (
            ("ASCII output", _ascii),
            ("closed output", _closed),
            ("closed errors", _silent),
            ("/dev/full", None),
        )
    )
    if before is None:
        return "standard output on /dev/full", run(chosen.words, folder, output="/dev/full", seconds=600)
    return what, run(chosen.words, folder, before=before, seconds=600)


def small(chosen: Scenario, folder: Path, rng: Random) -> tuple[str, Outcome]:
    """A file system of its own with little room, where mounting one is allowed."""
    pages = rng.choice((0, 1, 4, 10, 20))
    with tempfile.TemporaryDirectory(prefix="onespike-faults-") as place:
        used = sum(-(-f.stat().st_size // 4096) + 1 for f in folder.rglob("*"))
        script = (
            f"mount -t tmpfs -o size={(used + pages + 2) * 4096} tmpfs {place} && cp -a {folder}/. {place} && "
            f"cd {place} && {shlex.join((*PROGRAM, *chosen.words))}; code=$?; "
            f"rm -rf {folder}/* && cp -a {place}/. {folder} && exit $code"
        )
        ended = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    return f"a disk with {4 * pages} kB left", Outcome(ended.returncode, ended.stdout, ended.stderr, 0.0)


def _may_mount() -> bool:
    if not shutil.which("unshare"):
        return False
    words = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


KINDS = (limited, device, read_only, printed, limited) + ((small,) if _may_mount() else ())
COUNT = len(KINDS) * len(WRITING)


def case(stage: Path, folder: Path, number: int, rng: Random) -> tuple[str, list[Fault]]:
    """One command on one bad disk, and once more on a good one."""
    kind, chosen = KINDS[number % len(KINDS)], WRITING[number // len(KINDS) % len(WRITING)]
    expected, _ = WHOLE[chosen.words]
    _prepare(stage, folder, chosen)
    before = _digests(folder)
    what, outcome = kind(chosen, folder, rng)
    done = f"{chosen.words[0]}: {what}"
    kinds = [outcome.fault(), *_losses(folder, before)]
    if half_written(folder):
        kinds.append("half-written")
    if not any(kinds) and result_of(folder, outcome, chosen.result) != expected:
        again = run((*chosen.words, *chosen.more), folder, seconds=600)
        kinds.append(again.fault((0,)))
        if not any(kinds) and result_of(folder, again, chosen.result) != expected:
            kinds.append("corrupt")
        outcome = outcome if again.code == 0 else again
    return done, [Fault(k, done, chosen.words, outcome.tail) for k in kinds if k]
