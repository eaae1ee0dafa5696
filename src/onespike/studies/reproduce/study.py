"""A study is a name, a function from a bench to rows, and a drawing; its results are files for readers and programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.energy.columns import meanings
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
Measure = Callable[[Bench], list[Row]]


@dataclass(frozen=True)
class Study:
    """One table or figure of the paper, or one question of its critics.

    It measures the default bundled network, or networks of a task if it names one. A terminal and a LaTeX table show the
    essential columns, all if there are none. The note says how to compare our numbers with those of the paper's images.
    """

    name: str
    title: str
    network: str
    measure: Measure
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
    **options: Any,
) -> Callable[[Measure], Measure]:
    """Register a function from a bench to rows as a study."""

    def register(measure: Measure) -> Measure:
        if name in STUDIES:
            raise UsageError(f"the study '{name}' is registered already. Choose another name.")
        STUDIES[name] = Study(name, title, network, measure, draw, note, **options)
        return measure

    return register


def with_data(study: Study, rows: Sequence[Row], source: str) -> list[Row]:
    """Return the rows with the names of the images that their own numbers and the paper's were measured on."""
    named = []
    for row in rows:
        paper = {key for key, value in row.items() if key.startswith("paper ") and value is not None}
        ours = any(isinstance(value, float) for key, value in row.items() if not key.startswith("paper "))
        sources = zip(DATA, (source if ours else None, study.paper_data if paper else None), strict=True)
        named.append(row | {key: value for key, value in sources if value is not None})
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
    with understood(bench.folder / CACHE, REMEDY, DataError) if bench.finished else nullcontext():
        rows = with_data(study, study.measure(bench), bench.test.source.removeprefix("bundled:"))
        facts = {"study": study.name, "title": study.title, "note": study.note}
        every, essential, figure = columns_of(rows), study.columns(rows), study.draw(rows)
        raw = [["" if row.get(c) is None else str(row[c]) for c in every] for row in rows]
        contents: dict[str, str | bytes] = {
            f"{study.name}.csv": as_csv(every, raw),
            f"{study.name}.tex": as_latex(essential, [[cell(row.get(c)) for c in essential] for row in rows]),
            f"{study.name}.json": stamped({**facts, **bench.identity, "rows": rows}),
            f"{study.name}.md": as_markdown(study, rows, bench),
            f"{study.name}.png": plots.png(figure),
            **plots.files(figure, study.name),
        }
    files = [bench.folder / name for name in contents]
    for file, content in zip(files, contents.values(), strict=True):
        write_atomically(file, content)
    return rows, files


COLORS = (plots.BLUE, plots.ORANGE, plots.GREEN, plots.GRAY, "#CC79A7", "#56B4E9")
LABELS = {
    **{column: f"energy ratio ({column})" for column in meanings()},
    "energy": "energy ratio (the method's own count)", "kl": "KL, nats",
    "scale": "scale λ", "percentile": "p, %", "T": "timesteps T", "levels per side": "levels per side",
    "seconds": "seconds", "ms per image": "ms per image", "firing": "spikes per neuron and input",
}  # fmt: skip


def _label(rows: Sequence[Row], measure: str) -> str:
    """Return the name of an axis; a score has that of its metric."""
    named = [row["metric"] for row in rows if row.get("metric")] if measure == "score" else []
    return str(named[0]) if named else LABELS.get(measure, measure)


def bars(name: str, *measures: str) -> Callable[[Sequence[Row]], Figure]:
    """Draw one panel per measure; a row's bar is beside the paper's, if the paper prints one."""
    return partial(_bars, name=name, measures=measures)


def _bars(rows: Sequence[Row], name: str, measures: Sequence[str]) -> Figure:
    made, axes = plots.figure(5.2 * len(measures), 1.4 + 0.42 * len(rows), columns=len(measures))
    panels = axes if len(measures) > 1 else [axes]
    for measure, panel in zip(measures, panels, strict=True):
        both = (measure, f"paper {measure}")
        drawn = [row for row in rows if any(row.get(key) is not None for key in both)]
        places = range(len(drawn))
        for offset, key, data, color, label in (
            (-0.2, measure, "data", plots.BLUE, "measured here"),
            (0.2, f"paper {measure}", "paper data", plots.GRAY, "in the paper"),
        ):
            values = [row.get(key) for row in drawn]
            if any(v is not None for v in values):
                at, widths = [p + offset for p in places], [v or 0 for v in values]
                bars = panel.barh(at, widths, 0.38, color=color, label=label)
                texts = [
                    "" if v is None else f"{v:.3g}" + (f", {row[data]}" if data in row else "")
                    for v, row in zip(values, drawn, strict=True)
                ]
                panel.bar_label(bars, texts, padding=2, fontsize=7)
        panel.set_yticks(list(places), [str(row[name]) for row in drawn])
        panel.invert_yaxis()
        panel.grid(False, axis="y")
        panel.margins(x=0.45)
        panel.set_xlabel(_label(rows, measure))
    handles, labels = panels[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=8)
    return made


def curves(
    over: str, *measures: str, by: str | None = None, log: bool = False
) -> Callable[[Sequence[Row]], Figure]:
    """Draw one panel per measure over a quantity, with one curve per value of `by`."""
    return partial(_curves, over=over, measures=measures, by=by, log=log)


def _curves(rows: Sequence[Row], over: str, measures: Sequence[str], by: str | None, log: bool) -> Figure:
    made, axes = plots.figure(4.8 * len(measures), 3.6, columns=len(measures))
    panels = axes if len(measures) > 1 else [axes]
    for measure, panel in zip(measures, panels, strict=True):
        for place, group in enumerate(dict.fromkeys(row[by] for row in rows) if by else [None]):
            group_rows = [
                r for r in rows
                if (by is None or r[by] == group) and r.get(measure) is not None and r.get(over) is not None
            ]  # fmt: skip
            group_rows.sort(key=lambda row: float(row[over]))
            color = COLORS[place % len(COLORS)]
            errors = [r.get("error") or 0.0 for r in group_rows] if measure == "score" else None
            panel.errorbar(
                [r[over] for r in group_rows], [r[measure] for r in group_rows], errors, fmt="o-", color=color, label=group,
                elinewidth=1, capsize=2,
            )  # fmt: skip
            paper = [r for r in group_rows if r.get(f"paper {measure}") is not None]
            if paper:
                values = [r[f"paper {measure}"] for r in paper]
                panel.plot([r[over] for r in paper], values, "s--", color=plots.GRAY, label="in the paper")
        original = [row["ann"] for row in rows if row.get("ann") is not None]
        if measure == "score" and original:
            panel.axhline(original[0], color="black", linewidth=0.8, linestyle=":", label="original network")
        if log:
            panel.set_xscale("log")
            ticks = sorted({float(row[over]) for row in rows})
            panel.set_xticks(ticks, [f"{t:g}" for t in ticks])
            panel.minorticks_off()
        panel.set_xlabel(LABELS.get(over, over))
        panel.set_ylabel(_label(rows, measure))
        if panel.get_legend_handles_labels()[1]:
            panel.legend(frameon=False, fontsize=8)
    return made
