"""A study is a name, a function from a bench to rows, and a drawing; its results are files for readers and programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.errors import DataError, UsageError
from onespike.reports import plots
from onespike.reports.tables import as_csv, as_latex
from onespike.runtime.atomic import write_atomically
from onespike.runtime.provenance import stamped
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
        essential: the columns that a terminal and a LaTeX table show; all if empty.
        paper_data: the images of the paper's numbers.
    """

    name: str
    title: str
    network: str
    measure: Callable[[Bench], list[Row]]
    draw: Callable[[Sequence[Row]], Figure]
    note: str
    task: str | None = None
    essential: tuple[str, ...] = ()
    paper_data: str = "ImageNet-1K"

    def columns(self, rows: Sequence[Row]) -> list[str]:
        """Return the essential columns, without those that say the same in all rows."""
        every = columns_of(rows)
        return [c for c in self.essential or every if c in every and c not in ("metric", *DATA)]


DATA = ("data", "paper data")
"""The columns that name the images of a row's own numbers, and of the paper's."""
STUDIES: dict[str, Study] = {}


def study(
    name: str,
    title: str,
    draw: Callable[[Sequence[Row]], Figure],
    note: str,
    network: str = "cifar10-vit",
    task: str | None = None,
    essential: tuple[str, ...] = (),
    paper_data: str = "ImageNet-1K",
) -> Callable[[Callable[[Bench], list[Row]]], Callable[[Bench], list[Row]]]:
    """Register a function from a bench to rows as a study."""

    def register(measure: Callable[[Bench], list[Row]]) -> Callable[[Bench], list[Row]]:
        if name in STUDIES:
            raise UsageError(f"the study '{name}' is registered already. Choose another name.")
        STUDIES[name] = Study(name, title, network, measure, draw, note, task, essential, paper_data)
        return measure

    return register


def with_data(study: Study, rows: Sequence[Row], source: str) -> list[Row]:
    """Return the rows with the names of the images that their own numbers and the paper's were measured on."""
    named = []
    for row in rows:
        own = any(isinstance(value, float) for key, value in row.items() if not key.startswith("paper "))
        paper = any(value is not None for key, value in row.items() if key.startswith("paper "))
        sources = (source if own else None, study.paper_data if paper else None)
        named.append(
            row | {key: value for key, value in zip(DATA, sources, strict=True) if value is not None}
        )
    return named


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
    note = f"{study.note} {bench.note}".strip()
    return "\n".join([*lines, f"Network: {bench.loaded.spec}; {sets}.", "", note, ""])


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Return every column that any row has, in the order of first appearance."""
    return list(dict.fromkeys(column for row in rows for column in row))


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def run_study(study: Study, bench: Bench) -> tuple[list[Row], list[Path]]:
    """Measure what is missing, and write CSV, LaTeX, JSON, Markdown and the figure as PNG, SVG and PDF."""
    kept = understood(bench.folder / CACHE, REMEDY, DataError) if bench.kept else nullcontext()
    with kept:
        rows = with_data(study, study.measure(bench), bench.test.source.removeprefix("bundled:"))
        record = {
            "study": study.name,
            "title": study.title,
            "note": study.note,
            **bench.identity,
            "rows": rows,
        }
        every, essential, figure = columns_of(rows), study.columns(rows), study.draw(rows)
        raw = [["" if row.get(c) is None else str(row[c]) for c in every] for row in rows]
        contents: dict[str, str | bytes] = {
            f"{study.name}.csv": as_csv(every, raw),
            f"{study.name}.tex": as_latex(essential, [[cell(row.get(c)) for c in essential] for row in rows]),
            f"{study.name}.json": stamped(record),
            f"{study.name}.md": as_markdown(study, rows, bench),
            f"{study.name}.png": plots.png(figure),
            **plots.files(figure, study.name),
        }
    files = [bench.folder / name for name in contents]
    for file, content in zip(files, contents.values(), strict=True):
        write_atomically(file, content)
    return rows, files
