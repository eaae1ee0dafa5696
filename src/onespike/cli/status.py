"""A line that shows that a command is alive while it has no progress bar; on terminals only."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread

PATIENCE = 2.0
"""Seconds of silence after which the line appears."""
CLEAR = "\r\x1b[2K"


class Status:
    """The last message, its time, and whether the line is shown."""

    def __init__(self) -> None:
        self.lock, self.stop = Lock(), Event()
        self.title, self.since, self.shown, self.bars = "starting", time.monotonic(), False, 0

    def clear(self, title: str | None = None) -> None:
        """Clear the line before other output; `title` names the work from now on."""
        with self.lock:
            if self.shown:
                sys.stderr.write(CLEAR)
                sys.stderr.flush()
            self.shown, self.since = False, time.monotonic()
            self.title = title or self.title

    def tick(self) -> None:
        """Show the line after a while of silence."""
        with self.lock:
            idle = time.monotonic() - self.since
            if self.bars or idle < PATIENCE:
                return
            sys.stderr.write(f"{CLEAR}{self.title} … {idle:.0f} s")
            sys.stderr.flush()
            self.shown = True

    def loop(self) -> None:
        while not self.stop.wait(0.5):
            self.tick()


_current: Status | None = None


def clear(title: str | None = None) -> None:
    """Clear the line; called before anything is printed."""
    if _current is not None:
        _current.clear(title)


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
def bar(title: str) -> Iterator[None]:
    """Let a progress bar take the line's place within this context."""
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
