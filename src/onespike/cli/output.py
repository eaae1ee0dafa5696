"""The one way to print: tables and lines on a terminal, the same words in a file; figures as JSON, CSV and LaTeX; progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 160  # for tables in a file or a pipe, which have no width
SECONDS_BETWEEN_LINES = 10.0


@cache
def _console(stderr: bool) -> Console:
    """Return the console for results, or for notes; rich is imported with the first line."""
    from rich import console as rich

    class Plain(rich.Console):
        def on_broken_pipe(self) -> None:
            raise  # to where the command line handles all errors

    width = None if stderr or sys.stdout.isatty() else WIDTH
    return Plain(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False, width=width)


def line(*texts: str) -> None:
    """Print these lines, or an empty one."""
    _console(stderr=False).print("\n".join(texts))


def note(text: str) -> None:
    """Print progress of long work on standard error."""
    _console(stderr=True).print(text)


PRINTED: list[tuple[Sequence[str], list[tuple[str, ...]]]] = []  # the tables of this command, for `tables`


def rows(headers: Sequence[str], cells: Iterable[Sequence[object]], left: Sequence[int] = ()) -> None:
    """Print a table of figures: columns are right-aligned, except those of `left`."""
    from rich.table import Table

    body = [tuple(map(str, row)) for row in cells]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, header in enumerate(headers):
        table.add_column(header, justify="left" if index in left else "right", overflow="fold")
    for row in body:
        table.add_row(*row)
    _console(stderr=False).print(table)
    PRINTED.append((headers, body))


def figures(file: Path | None, record: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write the figures of a command as JSON, if a file for them is given; its tables are written at the command's end."""
    from onespike.reports.tables import FORMS
    from onespike.runtime.atomic import write_atomically
    from onespike.runtime.provenance import stamped

    if file is not None and file.suffix not in FORMS:
        write_atomically(file, stamped(record))


def tables(*files: Path | None) -> None:
    """Write the tables that were printed, into the files whose ending names a form of tables."""
    from onespike.reports.tables import FORMS, write_tables

    for file in files:
        if file is not None and file.suffix in FORMS:
            write_tables(file, PRINTED)


def progress(title: str, total: int) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """Return a wrapper for batches that reports progress on standard error: a bar on a terminal, plain lines elsewhere."""
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
