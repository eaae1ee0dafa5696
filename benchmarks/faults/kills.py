"""Kills: a command ends by a signal at a random moment, or right after a write. Given again, it ends as if not killed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from commands import Outcome, Words, copy_of, result_of, run, started
from damaged import AFRESH, DOCTOR, INSPECT, VERIFY, Fault, half_written
from stage import (
    ABLATE,
    BENCHMARK,
    COMPARE,
    EVALUATE,
    EXPORT,
    GENERATE,
    PUSH,
    REPORT,
    REPRODUCE,
    SEARCH,
    SERVE,
    TUNE,
    WORKFLOW,
)

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
PATIENCE = 60.0
PROGRAM = (sys.executable, str(Path(__file__).with_name("programs.py")))
REFUSED_TWICE = ("convert", "export")
"""They write a folder in one step and refuse one that exists: whole, it is the result although they were killed after it."""
FRESH = 8
"""Every eighth command that is killed starts an interpreter of its own; the others are forks, which import nothing."""


def _trials(folder: Path) -> dict[str, Any]:
    """The finished trials of a search."""
    file = folder / "run" / "search" / "study.db"
    if not file.exists() or not file.stat().st_size:
        return {}
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
        try:
            rows = connection.execute(
                "SELECT t.number, p.param_value, v.value FROM trials t JOIN trial_params p USING (trial_id) "
                "JOIN trial_values v USING (trial_id) WHERE t.state = 'COMPLETE'"
            ).fetchall()
        except sqlite3.OperationalError:  # no tables yet
            rows = []
    connection.close()
    return {str(number): [scale, value] for number, scale, value in rows}


def _measured(folder: Path) -> dict[str, Any]:
    """The finished measurements of a study."""
    return _record(folder / "reps" / "measured.json").get("measured", {})


def _rows(folder: Path) -> dict[str, Any]:
    """The finished rows of all ablations."""
    return _record(folder / "run" / "ablation" / "ablation.json").get("measured", {})


def _record(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


@dataclass(frozen=True)
class Scenario:
    """A command, what it starts from, and what it must give in the end.

    Attributes:
        words: the command.
        needs: folders of the stage that it reads.
        result: where its result stands (see `result_of`).
        without: what an earlier command left in them that this one makes.
        more: options with which it is given again.
        finished: the rows that it has finished so far: none may be lost.
    """

    words: Words
    needs: tuple[str, ...]
    result: str
    without: tuple[str, ...] = ()
    more: Words = ()
    finished: Callable[[Path], dict[str, Any]] = lambda folder: {}


SCENARIOS = (
    Scenario(AFRESH, ("net", "cal"), "new/run.json#files"),
    Scenario(EVALUATE, ("run", "images"), "out.json"),
    Scenario(SEARCH, ("run", "images"), "out.json#best", ("run/search",), ("--resume",), _trials),
    Scenario(DOCTOR, ("run", "images"), "out.json"),
    Scenario(REPORT, ("run", "images"), "run/report/report.json", ("run/report",)),
    Scenario(COMPARE, ("run", "run2"), "both/compare.json"),
    Scenario(ABLATE, ("run", "images", "cal"), "out.json", ("run/ablation",), (), _rows),
    Scenario(REPRODUCE, ("net", "images"), "reps/table-percentile.json", (), (), _measured),
    Scenario(INSPECT, ("run",), ""),
    Scenario(VERIFY, ("run", "images"), ""),
    Scenario(TUNE, ("net", "cal"), "tuned/run.json#files"),
    Scenario(WORKFLOW, ("net", "cal", "images"), "whole/report/report.json"),
    Scenario(EXPORT, ("run", "cal"), "exported/network.json"),
    Scenario(BENCHMARK, ("run", "images"), "out.json"),
    Scenario(GENERATE, ("text",), "out.json"),
    Scenario(SERVE, ("run", "asked"), "out.json"),
    Scenario(PUSH, ("run", "hub"), "hub/stored.json"),
    Scenario(("list", "presets"), (), ""),
    Scenario(("demo", "segmentation", "--out", "shown"), (), "shown/report.json"),
)  # fmt: skip
RARE = Scenario(("demo", "--out", "shown"), (), "shown/report.json")
"""It takes half a minute, so it has every fortieth turn only."""


def _prepare(stage: Path, folder: Path, chosen: Scenario) -> None:
    copy_of(stage, folder, chosen.needs)
    for name in chosen.without:
        shutil.rmtree(folder / name)


WHOLE: dict[Words, tuple[Any, float]] = {}
"""Command → what it gives when nobody kills it, and how long it takes once its modules are imported."""


def learn(stage: Path, words: Words) -> tuple[Words, Any, float]:
    """Run a command on whole files; return it, its result, and its seconds."""
    chosen = next(s for s in (*SCENARIOS, RARE) if s.words == words)
    with tempfile.TemporaryDirectory(prefix="onespike-faults-") as place:
        _prepare(stage, Path(place), chosen)
        outcome = run(chosen.words, Path(place), seconds=600)
        if outcome.code != 0:
            raise RuntimeError(f"onespike {' '.join(words)} fails on files that are whole:\n{outcome.tail}")
        return words, result_of(Path(place), outcome, chosen.result), outcome.seconds


def choice(stage: Path, number: int) -> tuple[Scenario, signal.Signals]:
    """The scenarios that the stage allows take turns, and so do the signals."""
    possible = [s for s in SCENARIOS if all((stage / name).exists() for name in (*s.needs, *s.without))]
    chosen = RARE if number % 40 == 39 else possible[number % len(possible)]
    return chosen, SIGNALS[number // len(possible) % 3]


@cache
def startup() -> float:
    """How long a command takes that does nothing but import."""
    started = time.monotonic()
    subprocess.run([*PROGRAM, "list", "presets"], capture_output=True, check=True)
    return time.monotonic() - started


def case(stage: Path, folder: Path, number: int, rng: Random) -> tuple[str, list[Fault]]:
    """One kill, and the command once more."""
    chosen, how = choice(stage, number)
    expected, seconds = WHOLE[chosen.words]
    moment, writes = rng.random(), rng.choice((0, 0, 1, 2, 3, 5))
    fresh = number % FRESH == 0
    for attempt in range(4):  # a command that was faster than the signal is started anew
        shutil.rmtree(folder)
        folder.mkdir()
        _prepare(stage, folder, chosen)
        before = _digests(folder)
        limit = (startup() * fresh + 2 * seconds) * moment / 2**attempt
        killed = _killed(chosen, folder, how, limit, writes if attempt == 0 else 0, fresh)
        if killed is not None:
            break
    else:
        return f"{chosen.words[0]} was always faster", [Fault("campaign", "no kill", chosen.words, "")]
    outcome, when = killed
    done = f"{how.name} {when}"
    kinds = [_manners(outcome, how), *_losses(folder, before)]
    kept = chosen.finished(folder)
    if chosen.words[0] not in REFUSED_TWICE or result_of(folder, outcome, chosen.result) != expected:
        again = run((*chosen.words, *chosen.more), folder, seconds=600)
        kinds += [again.fault(), *_verdict(folder, chosen, again, expected)]
        outcome = outcome if again.code == 0 else again
    now = chosen.finished(folder)
    if any(now.get(key) != row for key, row in kept.items()):
        kinds.append("lost")
    if half_written(folder):
        kinds.append("half-written")
    return f"{chosen.words[0]}: {done}", [Fault(k, done, chosen.words, outcome.tail) for k in kinds if k]


def _killed(
    chosen: Scenario, folder: Path, how: signal.Signals, limit: float, writes: int, fresh: bool
) -> tuple[Outcome, str] | None:
    """Start the command and send the signal; None if it had ended by then."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process: subprocess.Popen[bytes] | Fork
        if fresh:
            words = [*PROGRAM, *chosen.words]
            process = subprocess.Popen(words, cwd=folder, stdout=out, stderr=err, start_new_session=True)
        else:
            process = Fork(started(chosen.words, folder, [out.fileno(), err.fileno()]))
        changes, last = 0, _shape(folder)
        while process.poll() is None:
            if writes:
                if (now := _shape(folder)) != last:
                    changes, last = changes + 1, now
                if changes >= writes:
                    break
                time.sleep(0.0005)
            elif time.monotonic() - began >= limit:
                break
            else:
                time.sleep(0.002)
        if process.poll() is not None:
            return None
        when = f"after {changes} writes" if writes else f"after {time.monotonic() - began:.2f} s"
        process.send_signal(how)
        code: int | None
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Outcome(code, texts[0], texts[1], time.monotonic() - began), when


class Fork:
    """A child process, with the methods of `subprocess.Popen` that are used here."""

    def __init__(self, child: int) -> None:
        self.child = child
        self.code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            ended, status = os.waitpid(self.child, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if ended else None
        return self.code

    def wait(self, timeout: float = PATIENCE) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("fork", timeout)
            time.sleep(0.002)
        return self.code or 0

    def send_signal(self, how: int) -> None:
        os.kill(self.child, how)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _manners(outcome: Outcome, how: signal.Signals) -> str | None:
    """Whether the command ended as one that was asked to: without a traceback, and with a word after Ctrl-C."""
    if "Traceback" in outcome.err and "onespike" not in outcome.err:
        return None  # the interpreter itself was starting, and no line of onespike had run
    return outcome.fault((0, 2, -how, 128 + how))


def _losses(folder: Path, before: dict[str, str]) -> list[str]:
    """What was there and is gone, or is no longer whole."""
    now = _digests(folder)
    if before.keys() - now.keys():
        return ["lost"]
    return (
        []
        if all(_is_whole(folder / name) for name in now if name not in before or now[name] != before[name])
        else ["corrupt"]
    )


def _is_whole(file: Path) -> bool:
    from PIL import Image
    from safetensors import safe_open

    if ".partial" in str(file):
        return True  # it has no name yet by which anybody would read it
    try:
        if file.suffix == ".json":
            json.loads(file.read_text(encoding="utf-8"))
        elif file.suffix == ".png":
            with Image.open(file) as image:
                image.verify()
        elif file.suffix == ".safetensors":
            with safe_open(file, "pt") as opened:
                opened.keys()
    except Exception:  # noqa: BLE001 - whatever a reader finds wrong
        return False
    return True


def _verdict(folder: Path, chosen: Scenario, again: Outcome, expected: Any) -> list[str]:
    if again.code != 0:
        return ["lost"]
    return [] if result_of(folder, again, chosen.result) == expected else ["corrupt"]


def _shape(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times below a folder: what a write changes."""
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                state = Path(place, name).stat()
            except OSError:
                continue
            found.append((name, state.st_size, state.st_mtime_ns))
        found.append((place, len(names), 0))
    return tuple(found)


def _digests(folder: Path) -> dict[str, str]:
    files = (f for f in folder.rglob("*") if f.is_file() and not f.name.endswith((".lock", "-journal")))
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
