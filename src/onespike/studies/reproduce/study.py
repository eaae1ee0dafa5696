"""A study is a name and a function from a bench to rows, with a drawing if it is of a figure; its results are files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.energy.columns import PAPER
from onespike.errors import DataError
from onespike.reports import plots
from onespike.reports.tables import as_csv, as_latex
from onespike.runtime.atomic import write_atomically
from onespike.runtime.provenance import stamped
from onespike.runtime.validated import understood
from onespike.studies.finished import REMEDY
from onespike.studies.reproduce.bench import CACHE, Bench

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
Measure = Callable[[Bench], Iterable[Row]]
Draw = Callable[[Sequence[Row]], "Figure"]


@dataclass(frozen=True)
class Study:
    """One table or figure of the paper, or one question of its critics.

    It measures the default bundled network, or networks of a task if it names one. A terminal and a LaTeX table show the
    essential columns, all if there are none. The note says how to compare our numbers with those of the paper's images.
    """

    measure: Measure
    name: str
    title: str
    note: str
    draw: Draw | None = None
    network: str = "cifar10-vit"
    task: str | None = None
    essential: tuple[str, ...] = ()
    paper_data: str = "ImageNet-1K"

    def table(self, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
        """Return the essential columns, without those that say the same in all rows, and their cells."""

        def cell(value: Any) -> str:
            return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

        every, constant = columns_of(rows), ("metric", "data", "paper data")
        columns = [c for c in self.essential or every if c in every and c not in constant]
        return columns, [[cell(row.get(column)) for column in columns] for row in rows]


STUDIES: dict[str, Study] = {}


def study(name: str, title: str, note: str, **options: Any) -> Callable[[Measure], Measure]:
    """Register a function from a bench to rows as a study."""

    def register(measure: Measure) -> Measure:
        STUDIES[name] = Study(measure, name, title, note, **options)
        return measure

    return register


def with_data(study: Study, rows: Iterable[Row], source: str) -> list[Row]:
    """Return the rows with the names of the images that their own numbers and the paper's were measured on."""
    named = [dict(row) for row in rows]
    for row in named:
        if any(isinstance(value, float) for key, value in row.items() if not key.startswith("paper ")):
            row["data"] = source
        if any(key.startswith("paper ") and value is not None for key, value in row.items()):
            row["paper data"] = study.paper_data
    return named


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Return every column that any row has, in the order of first appearance."""
    return list(dict.fromkeys(column for row in rows for column in row))


def run_study(study: Study, bench: Bench) -> tuple[list[Row], list[Path]]:
    """Measure what is missing, and write CSV, LaTeX and JSON, and a figure as PNG, SVG and PDF."""
    with understood(bench.folder / CACHE, REMEDY, DataError) if bench.finished else nullcontext():
        rows = with_data(study, study.measure(bench), bench.test.source.removeprefix("bundled:"))
        facts = {"study": study.name, "title": study.title, "note": study.note}
        every = columns_of(rows)
        raw = [["" if row.get(c) is None else str(row[c]) for c in every] for row in rows]
        contents: dict[str, str | bytes] = {
            f"{study.name}.csv": as_csv(every, raw),
            f"{study.name}.tex": as_latex(*study.table(rows)),
            f"{study.name}.json": stamped({**facts, **bench.identity, "rows": rows}),
        }
        if study.draw is not None:
            figure = study.draw(rows)
            contents |= {f"{study.name}.png": plots.saved(figure), **plots.files(figure, study.name)}
    files = [bench.folder / name for name in contents]
    for file, content in zip(files, contents.values(), strict=True):
        write_atomically(file, content)
    return rows, files


COLORS = (plots.BLUE, plots.ORANGE, plots.GREEN, plots.GRAY, "#CC79A7", "#56B4E9")
LABELS = {
    PAPER: f"energy ratio ({PAPER})", "scale": "scale λ", "percentile": "p, %", "T": "timesteps T",
    "value": "activation, or value of its spike", "share": "share of values", "firing": "spikes per neuron and input",
}  # fmt: skip


def curves(over: str, *measures: str, by: str = "", each: str = "", log: bool = False) -> Draw:
    """Draw one panel per measure over a quantity, with one curve per value of `by`.

    With `each`, every value of that column has a panel of its own, on a logarithmic scale.
    """

    def draw(rows: Sequence[Row]) -> Figure:
        parts = dict.fromkeys(row.get(each) for row in rows)
        panels = [(measure, part) for measure in measures for part in parts]
        made, _ = plots.figure(4.8 * len(panels), 3.6, columns=len(panels))
        original = [row["ann"] for row in rows if row.get("ann") is not None]
        metrics = [str(row["metric"]) for row in rows if row.get("metric")]
        for (measure, part), panel in zip(panels, made.axes, strict=True):
            chosen = [row for row in rows if row.get(each) == part]
            for place, group in enumerate(dict.fromkeys(row.get(by) for row in chosen)):
                mine = [row for row in chosen if row.get(by) == group and row.get(over) is not None]
                mine.sort(key=lambda row: float(row[over]))
                curve = [row for row in mine if row.get(measure) is not None]
                printed = [row for row in mine if row.get(f"paper {measure}") is not None]
                xs, ys = [row[over] for row in curve], [row[measure] for row in curve]
                errors = [row.get("error") or 0.0 for row in curve] if measure == "score" else None
                style: Any = {"color": COLORS[place % len(COLORS)], "elinewidth": 1, "capsize": 2}
                label = f"{LABELS[by]} {group:g}" if isinstance(group, float) else group
                panel.errorbar(xs, ys, errors, fmt=".-" if each else "o-", label=label, **style)
                if printed:
                    xs, ys = [row[over] for row in printed], [row[f"paper {measure}"] for row in printed]
                    panel.plot(xs, ys, "s--", color=plots.GRAY, label="in the paper")
            if measure == "score" and original:
                style = {"color": "black", "linewidth": 0.8, "linestyle": ":"}
                panel.axhline(original[0], label="original network", **style)
            if log:
                panel.set_xscale("log")
                ticks = sorted({float(row[over]) for row in rows})
                panel.set_xticks(ticks, [f"{t:g}" for t in ticks])
                panel.minorticks_off()
            if each:
                panel.set_title(str(part), fontsize=10)
                panel.set_yscale("log")
            panel.set_xlabel(LABELS.get(over, over))
            panel.set_ylabel(metrics[0] if measure == "score" and metrics else LABELS.get(measure, measure))
            if panel.get_legend_handles_labels()[1]:
                panel.legend(frameon=False, fontsize=8)
        return made

    return draw
