"""Progress of long work: a bar on a terminal, plain lines anywhere else, and a sign of life while there is neither."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Any

SECONDS_BETWEEN_LINES = 10.0
PATIENCE = 2.0
"""Seconds of silence after which the line appears."""
CLEAR = "\r\x1b[2K"


def progress(title: str, total: int) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """Return a wrapper for batches that reports progress on standard error."""

    def wrap(batches: Iterable[Any]) -> Iterator[Any]:
        return _bar(title, total, batches) if sys.stderr.isatty() else _lines(title, total, batches)

    return wrap


def _bar(title: str, total: int, batches: Iterable[Any]) -> Iterator[Any]:
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn(title),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    )
    with _in_place_of_status(title), rich.Progress(*columns, console=Console(stderr=True)) as bar:
        yield from bar.track(batches, total=total)


def _lines(title: str, total: int, batches: Iterable[Any]) -> Iterator[Any]:
    started = last = time.monotonic()
    for done, batch in enumerate(batches, 1):
        yield batch
        now = time.monotonic()
        if done == total or now - last >= SECONDS_BETWEEN_LINES:
            last, left = now, (now - started) * (total - done) / done
            print(f"{title}: {done}/{total}, {left:.0f} s left", file=sys.stderr, flush=True)


class Status:
    """A line that shows that a command is alive: the last message and how long ago it was."""

    def __init__(self) -> None:
        self.lock, self.stop = Lock(), Event()
        self.title, self.since, self.visible, self.bars = "starting", time.monotonic(), False, 0

    def clear(self, title: str | None = None) -> None:
        """Clear the line before other output; `title` names the work from now on."""
        with self.lock:
            if self.visible:
                sys.stderr.write(CLEAR)
                sys.stderr.flush()
            self.visible, self.since = False, time.monotonic()
            self.title = title or self.title

    def tick(self) -> None:
        """Show the line after a while of silence."""
        with self.lock:
            idle = time.monotonic() - self.since
            if self.bars or idle < PATIENCE:
                return
            sys.stderr.write(f"{CLEAR}{self.title} … {idle:.0f} s")
            sys.stderr.flush()
            self.visible = True

    def loop(self) -> None:
        while not self.stop.wait(0.5):
            self.tick()


_current: Status | None = None


def clear_status() -> None:
    """Clear the line; called before anything is printed."""
    if _current is not None:
        _current.clear()


@contextmanager
def alive() -> Iterator[None]:
    """Show the line during silence on a terminal, within this context."""
    global _current
    if _current is not None or not sys.stderr.isatty():
        yield
        return
    _current = status = Status()
    thread = Thread(target=status.loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        _current = None
        status.stop.set()
        thread.join()
        status.clear()


@contextmanager
def _in_place_of_status(title: str) -> Iterator[None]:
    status = _current
    if status is not None:
        status.clear()
        status.bars += 1
    try:
        yield
    finally:
        if status is not None:
            status.bars -= 1
            status.clear(f"{title}: done, working on")
