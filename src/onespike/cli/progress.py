"""Progress of long work: a bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

SECONDS_BETWEEN_LINES = 10.0


def progress(title: str, total: int) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """Return a wrapper for batches that reports progress on standard error."""
    return partial(_bar if sys.stderr.isatty() else _lines, title, total)


def _bar(title: str, total: int, batches: Iterable[Any]) -> Iterator[Any]:
    from rich import progress as rich
    from rich.console import Console

    times = rich.TimeElapsedColumn(), rich.TimeRemainingColumn()
    columns = rich.TextColumn(title), rich.BarColumn(), rich.MofNCompleteColumn(), *times
    with rich.Progress(*columns, console=Console(stderr=True)) as bar:
        yield from bar.track(batches, total=total)


def _lines(title: str, total: int, batches: Iterable[Any]) -> Iterator[Any]:
    started = last = time.monotonic()
    for done, batch in enumerate(batches, 1):
        yield batch
        now = time.monotonic()
        if done == total or now - last >= SECONDS_BETWEEN_LINES:
            last, left = now, (now - started) * (total - done) / done
            print(f"{title}: {done}/{total}, {left:.0f} s left", file=sys.stderr, flush=True)
