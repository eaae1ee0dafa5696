"""One command of onespike in a fork of this process: what it printed, how it ended, and what was wrong with that."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import programs

SECONDS = 60.0
"""A command on these few small images takes under two seconds; one that takes this long hangs."""
MEMORY = 8 << 30
"""Address space beyond what a fork starts with: a size that a damaged file states must not take the machine."""

Words = tuple[str, ...]
REFUSAL = r"onespike: |\S+: it cannot be replayed "


@dataclass(frozen=True)
class Outcome:
    """How a command ended; a negative code is the signal that ended it, and None stands for one that hung."""

    code: int | None
    out: str
    err: str
    seconds: float

    def fault(self, expected: tuple[int, ...] = (0, 2)) -> str | None:
        """What is wrong with this end, if anything is: its kind."""
        if self.code is None:
            return "hang"
        if "Traceback (most recent call last)" in self.out + self.err:
            return "traceback"
        if self.code < 0 and self.code not in expected:
            return "crash"
        if self.code not in expected:
            return "traceback" if self.code == 1 else "unclear"
        if "onespike: a request failed" in self.err:
            return "traceback"
        if self.code == 2 and not re.match(REFUSAL, self.err.rstrip().split("\n")[-1]):
            return "unclear"
        return None

    @property
    def tail(self) -> str:
        return (self.err or self.out)[-1500:]


def run(
    words: Words,
    folder: Path,
    *,
    seconds: float = SECONDS,
    before: Callable[[], None] = lambda: None,
    output: str | None = None,
    imported: Path | None = None,
) -> Outcome:
    """`onespike WORDS` in a folder, in a fork.

    Args:
        words: the command and its options.
        folder: where it runs.
        seconds: after which it counts as hanging.
        before: runs in the fork first.
        output: a file that stands for standard output.
        imported: a file that takes the names of all modules that the command had imported in the end.
    """
    began = time.monotonic()
    if words[0] in programs.QUICK and imported is None:
        return _here(words, folder)
    pipes = [os.pipe(), os.pipe()]  # files would count for the limits that a command is put under
    ends = [writing for _, writing in pipes]
    if output is not None:
        ends[0] = os.open(output, os.O_WRONLY)
    child = started(words, folder, ends, before, imported)
    if output is not None:
        os.close(ends[0])
    for _, writing in pipes:
        os.close(writing)
    code, out, err = _wait(child, [reading for reading, _ in pipes], seconds)
    return Outcome(code, out, err, time.monotonic() - began)


def _here(words: Words, folder: Path) -> Outcome:
    """A quick reader in this process."""
    began, home, argv = time.monotonic(), Path.cwd(), sys.argv
    out, err, code = io.StringIO(), io.StringIO(), 0
    os.chdir(folder)
    sys.argv = ["onespike", *words]
    signal.signal(signal.SIGALRM, _hangs)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            programs.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except TimeoutError:
        return Outcome(None, out.getvalue(), err.getvalue(), time.monotonic() - began)
    except BaseException:  # noqa: BLE001 - what a user would see
        err.write(traceback.format_exc())
        code = 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.chdir(home)
        sys.argv = argv
    return Outcome(code, out.getvalue(), err.getvalue(), time.monotonic() - began)


def _hangs(*_: Any) -> None:
    raise TimeoutError


def started(
    words: Words,
    folder: Path,
    ends: list[int],
    before: Callable[[], None] = lambda: None,
    imported: Path | None = None,
) -> int:
    """Fork; the child runs a command with these descriptors as its output and error. Return the child's number."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command has begun
            code = _become(words, folder, ends, before)
            if imported is not None:
                imported.write_text("\n".join(sys.modules), encoding="utf-8")
        finally:
            os._exit(code)
    return child


def _become(words: Words, folder: Path, ends: list[int], before: Callable[[], None]) -> int:
    os.setsid()
    os.chdir(folder)
    for number, end in enumerate(ends, 1):
        os.dup2(end, number)
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8", buffering=1)
    sys.argv = ["onespike", *words]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    code: Any = 0
    try:
        before()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        programs.main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - what a user would see
        traceback.print_exc()
        code = 1
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        code = code or 120  # as the interpreter does when it ends
    return code if isinstance(code, int) else 0 if code is None else 1


def _wait(child: int, readings: list[int], seconds: float) -> tuple[int | None, str, str]:
    """The exit code of a child, None if it had to be ended, and all that it wrote into two pipes."""
    end, handle = time.monotonic() + seconds, os.pidfd_open(child)
    texts = {reading: bytearray() for reading in readings}
    for reading in readings:
        os.set_blocking(reading, False)
    hung = False
    while True:
        ready = select.select([*readings, handle], [], [], max(end - time.monotonic(), 0))[0]
        for reading in ready:
            if reading != handle:
                part = os.read(reading, 1 << 20)
                texts[reading] += part
                if not part:
                    readings = [r for r in readings if r != reading]
        if ready == [handle]:  # and nothing is left to be read
            break
        if not ready:
            hung = True
            os.killpg(child, signal.SIGKILL)
            break
    for descriptor in (handle, *texts):
        os.close(descriptor)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    out, err = (bytes(text).decode(errors="replace") for text in texts.values())
    return None if hung else code, out, err


TIMES = re.compile(r"seconds|forwards|versions|\bms\b|^sha256$|^date$")


def comparable(value: Any) -> Any:
    """A result without what differs from one run to the next: times, and the seal of a record that holds them."""
    if isinstance(value, Mapping):
        return {key: comparable(part) for key, part in value.items() if not TIMES.search(str(key))}
    if isinstance(value, (list, tuple)):
        return [comparable(part) for part in value]
    return value


def result_of(folder: Path, outcome: Outcome, place: str) -> Any:
    """What a command gave: a part of a JSON file (`FILE#KEY`), or what it printed. None if there is none."""
    if not place:
        return outcome.out
    name, _, key = place.partition("#")
    try:
        record = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return comparable(record[key] if key else record)


def copy_of(stage: Path, folder: Path, names: tuple[str, ...]) -> None:
    """Some folders of the stage, to be damaged."""
    for name in names:
        if (stage / name).is_dir():
            shutil.copytree(stage / name, folder / name, symlinks=True)
        else:
            shutil.copy(stage / name, folder / name)
