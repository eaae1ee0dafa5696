"""A study is a name, a function from a bench to rows, and a drawing; its results are four files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.errors import DataError, UsageError
from onespike.report import plots
from onespike.runtime.atomic import write_atomically
from onespike.runtime.validated import understood
from onespike.studies.reproduce.bench import CACHE, REMEDY, Bench

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """One table or figure of the paper, or one question of its critics.

    Attributes:
        name: its name on the command line.
        title: what it shows.
        network: the default bundled network.
        measure: from a bench to rows.
        draw: from rows to a figure.
        note: how to compare our numbers with the paper's.
        task: the name of the task whose networks it measures; any task if empty.
        essential: the columns that a terminal shows; all if empty.
    """

    name: str
    title: str
    network: str
    measure: Callable[[Bench], list[Row]]
    draw: Callable[[Sequence[Row]], Figure]
    note: str
    task: str | None = None
    essential: tuple[str, ...] = ()


STUDIES: dict[str, Study] = {}


def study(
    name: str,
    title: str,
    draw: Callable[[Sequence[Row]], Figure],
    note: str,
    network: str = "cifar10-vit",
    task: str | None = None,
    essential: tuple[str, ...] = (),
) -> Callable[[Callable[[Bench], list[Row]]], Callable[[Bench], list[Row]]]:
    """Register a function from a bench to rows as a study."""

    def register(measure: Callable[[Bench], list[Row]]) -> Callable[[Bench], list[Row]]:
        if name in STUDIES:
            raise UsageError(f"the study '{name}' is registered already. Choose another name.")
        STUDIES[name] = Study(name, title, network, measure, draw, note, task, essential)
        return measure

    return register


def as_csv(rows: Sequence[Row]) -> str:
    """Return the rows as CSV with every column that any of them has.

    >>> print(as_csv([{"a": 1}, {"a": 2, "b": None}]), end="")
    a,b
    1,
    2,
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def as_markdown(study: Study, rows: Sequence[Row], bench: Bench) -> str:
    """Return a page: the title, the table, what was measured on what, and how to compare it with the paper."""
    columns = columns_of(rows)
    table = [
        columns,
        ["---"] * len(columns),
        *([cell(row.get(c)).replace("|", "\\|") for c in columns] for row in rows),
    ]
    lines = [f"# {study.title}", "", *("| " + " | ".join(line) + " |" for line in table), ""]
    sets = ", ".join(f"{name} {len(items)} images of {items.source}" for name, items in bench.sets().items())
    return "\n".join([*lines, f"Network: {bench.loaded.spec}; {sets}.", "", study.note, ""])


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Return every column that any row has, in the order of first appearance."""
    return list(dict.fromkeys(column for row in rows for column in row))


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def run_study(study: Study, bench: Bench) -> tuple[list[Row], list[Path]]:
    """Measure what is missing, and write CSV, JSON, Markdown and the figure."""
    kept = understood(bench.folder / CACHE, REMEDY, DataError) if bench.kept else nullcontext()
    with kept:
        rows = study.measure(bench)
        record = {
            "study": study.name,
            "title": study.title,
            "note": study.note,
            **bench.identity,
            "rows": rows,
        }
        contents: dict[str, str | bytes] = {
            "csv": as_csv(rows),
            "json": json.dumps(record, indent=1) + "\n",
            "md": as_markdown(study, rows, bench),
            "png": plots.png(study.draw(rows)),
        }
    files = [bench.folder / f"{study.name}.{suffix}" for suffix in contents]
    for file, content in zip(files, contents.values(), strict=True):
        write_atomically(file, content)
    return rows, files
