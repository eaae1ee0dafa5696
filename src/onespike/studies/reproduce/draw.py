"""The two kinds of study figure: bars beside the paper's, and curves with one axis per measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from onespike.energy.columns import meanings
from onespike.reports import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
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
    for measure, panel in zip(measures, axes if len(measures) > 1 else [axes], strict=True):
        shown = [
            row for row in rows if row.get(measure) is not None or row.get(f"paper {measure}") is not None
        ]
        places = range(len(shown))
        for offset, key, data, color, label in (
            (-0.2, measure, "data", plots.BLUE, "measured here"),
            (0.2, f"paper {measure}", "paper data", plots.GRAY, "in the paper"),
        ):
            values = [row.get(key) for row in shown]
            if any(v is not None for v in values):
                drawn = panel.barh(
                    [p + offset for p in places], [v or 0 for v in values], 0.38, color=color, label=label
                )
                texts = [
                    "" if v is None else f"{v:.3g}" + (f", {row[data]}" if data in row else "")
                    for v, row in zip(values, shown, strict=True)
                ]
                panel.bar_label(drawn, texts, padding=2, fontsize=7)
        panel.set_yticks(list(places), [str(row[name]) for row in shown])
        panel.invert_yaxis()
        panel.grid(False, axis="y")
        panel.margins(x=0.45)
        panel.set_xlabel(_label(rows, measure))
    made.legend(*(axes[0] if len(measures) > 1 else axes).get_legend_handles_labels(), loc="outside upper right",
                ncols=2, frameon=False, fontsize=8)  # fmt: skip
    return made


def curves(
    over: str, *measures: str, by: str | None = None, log: bool = False
) -> Callable[[Sequence[Row]], Figure]:
    """Draw one panel per measure over a quantity, with one curve per value of `by`."""
    return partial(_curves, over=over, measures=measures, by=by, log=log)


def _curves(rows: Sequence[Row], over: str, measures: Sequence[str], by: str | None, log: bool) -> Figure:
    made, axes = plots.figure(4.8 * len(measures), 3.6, columns=len(measures))
    for measure, panel in zip(measures, axes if len(measures) > 1 else [axes], strict=True):
        for place, group in enumerate(dict.fromkeys(row[by] for row in rows) if by else [None]):
            own = [
                r for r in rows
                if (by is None or r[by] == group) and r.get(measure) is not None and r.get(over) is not None
            ]  # fmt: skip
            own.sort(key=lambda row: float(row[over]))
            color = COLORS[place % len(COLORS)]
            errors = [r.get("error") or 0.0 for r in own] if measure == "score" else None
            panel.errorbar(
                [r[over] for r in own], [r[measure] for r in own], errors, fmt="o-", color=color, label=group,
                elinewidth=1, capsize=2,
            )  # fmt: skip
            paper = [r for r in own if r.get(f"paper {measure}") is not None]
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
