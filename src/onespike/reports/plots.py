"""Plots in one color-blind safe style; each takes results and returns a matplotlib Figure."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onespike.energy.columns import PAPER, comparators
from onespike.energy.ledger import Ledger
from onespike.runtime.figures import figure as figure
from onespike.runtime.figures import png as png
from onespike.scale_search.pareto import front as unbeaten
from onespike.tasks import Headline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GRAY = "#0072B2", "#D55E00", "#009E73", "#777777"
"""Okabe and Ito's palette, distinguishable with every common color blindness."""
INK = "#0a0b0c"
"""A placeholder for the page's text color while a figure is drawn for a page."""
LABELED = 12
"""Up to this many points, each is labeled with its λ."""


def svg(plot: Figure, name: str) -> str:
    """Return a figure as SVG for a page: its ink has the page's text color, so that it fits light and dark.

    Args:
        plot: the figure; its texts, axes and grid take the page's color, its data keep theirs.
        name: separates the identifiers of two figures on one page.
    """
    from matplotlib import rc_context
    from matplotlib.text import Text

    for axes in plot.axes:
        axes.tick_params(colors=INK)
        for spine in axes.spines.values():
            spine.set_edgecolor(INK)
    for text in plot.findobj(Text):
        text.set_color(INK)
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        plot.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawn = buffer.getvalue()
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    return drawn.replace(INK, "currentColor")


def files(plot: Figure, name: str) -> dict[str, bytes]:
    """Return a figure for a paper: file name → contents, as SVG and as PDF, the same bytes each time."""
    from matplotlib import rc_context

    found = {}
    for form, metadata in (("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
        buffer = io.BytesIO()
        with rc_context({"svg.hashsalt": name, "pdf.fonttype": 42}):
            plot.savefig(buffer, format=form, metadata=metadata)
        found[f"{name}.{form}"] = buffer.getvalue()
    return found


def ledger(energy: Mapping[str, float], own: str | None = None) -> Figure:
    """Plot the energy columns beside the original network; the run's column is highlighted."""
    made, axes = figure(6.4, 3.4)
    draw_ledger(axes, energy, own)
    return made


def front(
    points: Sequence[Mapping[str, float]], chosen: float, metric: str, energy: str, maximize: bool = True
) -> Figure:
    """Plot a metric against energy, one point per λ: unbeaten points are joined, the chosen one is ringed."""
    made, axes = figure(6.4, 3.8)
    bounded = [p for p in points if "low" in p]
    if bounded:
        reach = [[p["value"] - p["low"] for p in bounded], [p["high"] - p["value"] for p in bounded]]
        axes.errorbar(
            [p["energy"] for p in bounded], [p["value"] for p in bounded], yerr=reach, fmt="none", ecolor=GRAY,
            elinewidth=1, capsize=3, label="95 % interval",
        )  # fmt: skip
    kept = [points[place] for place in unbeaten([(p["energy"], p["value"]) for p in points], maximize)]
    axes.plot(
        [p["energy"] for p in points], [p["value"] for p in points], "o", color=GRAY, ms=5, label="tried"
    )
    axes.plot([p["energy"] for p in kept], [p["value"] for p in kept], "o-", color=BLUE, ms=5, label="front")
    for point in points if len(points) <= LABELED else ():
        axes.annotate(f"λ={point['scale']:.3g}", (point["energy"], point["value"]), xytext=(5, -11),
                      textcoords="offset points", fontsize=8)  # fmt: skip
    mine = min(points, key=lambda p: abs(p["scale"] - chosen))
    axes.plot(
        mine["energy"],
        mine["value"],
        "o",
        ms=13,
        mfc="none",
        mec=ORANGE,
        mew=2,
        label=f"chosen, λ = {chosen:.3g}",
    )
    if not maximize and 0 < 10 * min(p["value"] for p in points) < max(p["value"] for p in points):
        axes.set_yscale("log")  # a perplexity that runs away hides the others
    axes.margins(x=0.1, y=0.12)
    axes.set_xlabel(f"energy relative to the original's MACs ({energy})")
    axes.set_ylabel(metric)
    axes.legend(frameon=False)
    return made


def runs(rows: Sequence[Mapping[str, Any]], metric: str, energy: str = PAPER) -> Figure:
    """Plot several runs, a metric against energy; each keeps its number from the table.

    Bars are 95 % intervals of the difference to the original on the same inputs, or else of the figure itself.
    """
    made, axes = figure(6.4, 3.8)
    places: dict[tuple[float, float], list[str]] = {}  # equal runs share their label
    for number, row in enumerate(rows, 1):
        if row["energy"] is None:
            continue
        places.setdefault((row["energy"], row["value"]), []).append(str(number))
        low, high = row.get("bounds") or (row["value"], row["value"])
        reach = [[max(row["value"] - low, 0.0)], [max(high - row["value"], 0.0)]]
        axes.errorbar(row["energy"], row["value"], reach, fmt="o", color=BLUE, ms=8, ecolor=GRAY, capsize=3)
    for place, numbers in places.items():
        axes.annotate(", ".join(numbers), place, xytext=(7, 5), textcoords="offset points", fontsize=10)
    originals: dict[float, list[str]] = {}
    for number, row in enumerate(rows, 1):
        if row.get("original") is not None:
            originals.setdefault(row["original"], []).append(str(number))
    for original, numbers in originals.items():
        axes.axhline(original, color=GRAY, ls="--")
        label = "original" if len(originals) == 1 else f"original of {', '.join(numbers)}"
        axes.annotate(label, (1, original), xycoords=("axes fraction", "data"), ha="right", va="bottom",
                      fontsize=8)  # fmt: skip
    axes.margins(x=0.15, y=0.15)
    axes.set_xlabel(f"energy relative to the original's MACs ({energy})")
    axes.set_ylabel(metric)
    return made


def draw_ledger(axes: Any, energy: Mapping[str, float], own: str | None = None) -> None:
    names = ["original", *energy]
    values = [1.0, *energy.values()]
    others = {own: ORANGE} | dict.fromkeys(comparators(), GREEN)
    colors = [GRAY, *(others.get(name, BLUE) for name in energy)]
    bars = axes.barh(names, values, color=colors)
    axes.bar_label(bars, [f"{v:.3f}" for v in values], padding=3, fontsize=9)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlim(0, 1.18 * max(values))
    axes.set_xlabel("energy relative to the original's MACs")


def draw_scales(axes: Any, rows: Sequence[Mapping[str, Any]], headline: Headline, chosen: float) -> None:
    ordered = sorted(rows, key=lambda row: row[PAPER])
    axes.plot(
        [r[PAPER] for r in ordered], [r["score"] for r in ordered], "o-", color=BLUE, label="spiking, T=1"
    )
    for place, row in enumerate(ordered):
        offset = (
            (6, -12) if place % 2 else (-8, 9)
        )  # neighbors on different sides, so that they do not overlap
        axes.annotate(
            f"λ={row['scale']:g}", (row[PAPER], row["score"]), xytext=offset,
            textcoords="offset points", fontsize=8,
        )  # fmt: skip
        if row["scale"] == chosen:
            axes.plot(row[PAPER], row["score"], "o", ms=12, mfc="none", mec=ORANGE, mew=2, label="this run")
    axes.axhline(headline.original, color=GRAY, ls="--", label="original")
    axes.margins(x=0.08, y=0.08)
    axes.set_xlabel(f"energy ratio ({PAPER}), of all MACs")
    axes.set_ylabel(headline.title)
    axes.legend(frameon=False, loc="lower right")


def overview(
    energy: Mapping[str, float], rows: Sequence[Mapping[str, Any]], headline: Headline, chosen: float
) -> Figure:
    """Plot the headline over energy for several λ, and the ledger of the chosen one."""
    made, (left, right) = figure(10.0, 4.0, columns=2)
    draw_scales(left, rows, headline, chosen)
    left.set_title("accuracy against energy")
    draw_ledger(right, energy)
    right.set_title(f"energy ledger at λ = {chosen:g}")
    return made


def sites(ledger: Ledger) -> Figure:
    """Plot the mean spikes per neuron and the share of accumulates, site by site."""
    rows = [row for row in ledger.sites.values() if row.spiking]
    drivers = {id(row) for _, row in ledger.products()}
    total = ledger.accumulates(PAPER) or 1.0
    made, (left, right) = figure(10.0, max(3.0, 0.19 * len(rows) + 1.0), columns=2)
    names = [str(row.site) for row in rows]
    left.barh(names, [row.spikes / row.elements for row in rows], color=BLUE)
    left.set_xlabel("mean |spike count| of a neuron")
    right.barh(
        names, [100 * row.additions[PAPER] / total * (id(row) in drivers) for row in rows], color=ORANGE
    )
    right.set_xlabel("share of all accumulates, %")
    right.set_yticklabels([])
    for axes in (left, right):
        axes.invert_yaxis()
        axes.tick_params(axis="y", labelsize=6)
        axes.margins(y=0.01)
    return made


def scale_search(
    trials: Sequence[Any], best: Any, metric: str, energy: str, front: Sequence[Any] = ()
) -> Figure:
    """Plot the metric over λ and, if energy was measured, over energy; the chosen trial is ringed."""
    measured = sorted((t for t in trials if t.value is not None), key=lambda t: t.scale)
    known = [t for t in measured if t.energy is not None]
    made, axes = figure(10.0 if known else 5.5, 4.0, columns=2 if known else 1)
    left = axes[0] if known else axes
    left.plot([t.scale for t in measured], [t.value for t in measured], "o-", color=BLUE, ms=4)
    left.plot(
        best.scale,
        best.value,
        "o",
        ms=12,
        mfc="none",
        mec=ORANGE,
        mew=2,
        label=f"chosen: λ = {best.scale:.3g}",
    )
    _logarithmic(left.xaxis, [t.scale for t in measured])
    left.set_xlabel("λ")
    left.set_ylabel(metric)
    left.legend(frameon=False)
    if known:
        right = axes[1]
        right.plot([t.energy for t in known], [t.value for t in known], "o", color=GRAY, ms=4, label="trials")
        right.plot([t.energy for t in front], [t.value for t in front], "o-", color=BLUE, ms=5, label="front")
        if best.energy is not None:
            right.plot(best.energy, best.value, "o", ms=12, mfc="none", mec=ORANGE, mew=2, label="chosen")
        _logarithmic(right.xaxis, [t.energy for t in known])
        right.set_xlabel(f"energy ratio ({energy}), of all MACs")
        right.set_ylabel(metric)
        right.legend(frameon=False)
    values = [t.value for t in measured]
    if min(values) > 0 and max(values) > 20 * min(values):  # a divergence spans decades, an accuracy does not
        for part in axes if known else (axes,):
            _logarithmic(part.yaxis, values)
    return made


def _logarithmic(axis: Any, values: Sequence[float]) -> None:
    """Make an axis logarithmic, with plain numbers at 1, 2 and 5 times the powers of ten that the values reach."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = min(values), max(values)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**d for d in decades for m in (1, 2, 5) if 0.9 * low <= m * 10.0**d <= 1.1 * high]
    axis.set_ticks(ticks, [f"{t:g}" for t in ticks])
    axis.set_ticks([], minor=True)
