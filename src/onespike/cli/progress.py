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
    with status.replaced(title), rich.Progress(*columns, console=Console(stderr=True)) as bar:
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
        self.lock, self.running, self.visible, self.bars = Lock(), False, False, 0
        self.title, self.since = "starting", time.monotonic()

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

    @contextmanager
    def replaced(self, title: str) -> Iterator[None]:
        """Make room for a bar within this context."""
        self.clear()
        self.bars += 1
        try:
            yield
        finally:
            self.bars -= 1
            self.clear(f"{title}: done, working on")


status = Status()
"""The one line of this process."""


@contextmanager
def alive() -> Iterator[None]:
    """Show the line during silence on a terminal, within this context."""
    if status.running or not sys.stderr.isatty():
        yield
        return

    def tick() -> None:
        while not stop.wait(0.5):
            status.tick()

    stop, thread = Event(), Thread(target=tick, daemon=True)
    status.running = True
    status.clear("starting")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        status.running = False
        status.clear()
