"""Plots in one color-blind safe style; each takes results and returns a matplotlib Figure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onespike.energy.columns import COLUMNS, PAPER
from onespike.runtime.figures import figure as figure
from onespike.runtime.figures import saved as saved
from onespike.scale_search import front as unbeaten
from onespike.tasks import Headline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GRAY = "#0072B2", "#D55E00", "#009E73", "#777777"
"""Okabe and Ito's palette, distinguishable with every common color blindness."""
INK = "#0a0b0c"  # a placeholder for the page's text color while a figure is drawn for a page
RING: dict[str, Any] = {"ms": 12, "mfc": "none", "mec": ORANGE, "mew": 2}
LABELED = 12  # up to this many points, each is labeled with its λ
Point = Mapping[str, float]
"""`scale`, `value` and `energy`; `low` and `high` of an interval where there is one."""


def svg(plot: Figure, name: str) -> str:
    """Return a figure as SVG for a page: its ink has the page's text color, so that it fits light and dark.

    The name separates the identifiers of two figures on one page.
    """
    from matplotlib.text import Text

    for axes in plot.axes:
        axes.tick_params(colors=INK)
        for spine in axes.spines.values():
            spine.set_edgecolor(INK)
    for text in plot.findobj(Text):
        text.set_color(INK)
    settings, metadata = {"svg.fonttype": "none", "svg.hashsalt": name}, {"Date": None, "Creator": None}
    drawn = saved(plot, "svg", settings, transparent=True, metadata=metadata).decode()
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    return drawn.replace(INK, "currentColor")


def files(plot: Figure, name: str) -> dict[str, bytes]:
    """Return a figure for a paper: file name → contents, as SVG and as PDF, the same bytes each time."""
    settings = {"svg.hashsalt": name, "pdf.fonttype": 42}
    dates = {"svg": "Date", "pdf": "CreationDate"}
    return {f"{name}.{form}": saved(plot, form, settings, metadata={d: None}) for form, d in dates.items()}


def ledger(energy: Mapping[str, float], column: str) -> Figure:
    """Plot the energy columns beside the original network; the run's column is highlighted."""
    made, axes = figure(6.4, 3.4)
    values = [1.0, *energy.values()]
    comparators = [name for name, entry in COLUMNS.items() if not entry.reading]
    colors = {column: ORANGE} | dict.fromkeys(comparators, GREEN)
    bars = axes.barh(["original", *energy], values, color=[GRAY, *(colors.get(n, BLUE) for n in energy)])
    axes.bar_label(bars, [f"{v:.3f}" for v in values], padding=3, fontsize=9)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlim(0, 1.18 * max(values))
    axes.set_xlabel("energy relative to the original's MACs")
    return made


def front(points: Sequence[Point], chosen: float, metric: str, energy: str, maximize: bool = True) -> Figure:
    """Plot a metric against energy, one point per λ: unbeaten points are joined, the chosen one is ringed."""
    made, axes = figure(6.4, 3.8)
    _draw_intervals(axes, [p for p in points if "low" in p])
    best = [points[place] for place in unbeaten([(p["energy"], p["value"]) for p in points], maximize)]
    for some, style, color, label in ((points, "o", GRAY, "tried"), (best, "o-", BLUE, "front")):
        axes.plot(*_columns(some), style, color=color, ms=5, label=label)
    for number, point in enumerate(points if len(points) <= LABELED else ()):
        # neighbors on different sides, so that they do not overlap
        place = (6, -12) if number % 2 else (-8, 9)
        label = f"λ={point['scale']:.3g}"
        axes.annotate(label, (point["energy"], point["value"]), place, textcoords="offset points", fontsize=8)
    mine = min(points, key=lambda p: abs(p["scale"] - chosen))
    axes.plot(mine["energy"], mine["value"], "o", label=f"chosen, λ = {chosen:.3g}", **RING)
    if not maximize and 0 < 10 * min(p["value"] for p in points) < max(p["value"] for p in points):
        axes.set_yscale("log")  # a perplexity that runs away hides the others
    _name(axes, metric, energy)
    axes.legend(frameon=False)
    return made


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [p["energy"] for p in points], [p["value"] for p in points]


def _draw_intervals(axes: Any, points: Sequence[Point]) -> None:
    if points:
        below, above = (
            [max(p["value"] - p["low"], 0.0) for p in points],
            [max(p["high"] - p["value"], 0.0) for p in points],
        )
        style = {"fmt": "none", "ecolor": GRAY, "elinewidth": 1, "capsize": 3, "label": "95 % interval"}
        axes.errorbar(*_columns(points), (below, above), **style)


def _name(axes: Any, metric: str, energy: str) -> None:
    axes.margins(x=0.12, y=0.12)
    axes.set_xlabel(f"energy relative to the original's MACs ({energy})")
    axes.set_ylabel(metric)


def runs(headlines: Sequence[Headline], ratios: Sequence[float | None], column: str = PAPER) -> Figure:
    """Plot several runs, a metric against energy; each keeps its number from the table.

    Bars are 95 % intervals of the difference to the original on the same inputs, or else of the figure itself.
    """
    made, axes = figure(6.4, 3.8)
    places: dict[tuple[float, float], list[str]] = {}  # equal runs share their label
    originals: dict[float, list[str]] = {}
    for number, (headline, energy) in enumerate(zip(headlines, ratios, strict=True), 1):
        if energy is not None:
            value = headline.spiking or 0.0
            low, high = headline.compared or (value, value)
            places.setdefault((energy, value), []).append(str(number))
            _draw_intervals(axes, [{"energy": energy, "value": value, "low": low, "high": high}])
        if headline.original is not None:
            originals.setdefault(headline.original, []).append(str(number))
    for place, numbers in places.items():
        axes.plot(*place, "o", color=BLUE, ms=8)
        axes.annotate(", ".join(numbers), place, (7, 5), textcoords="offset points", fontsize=10)
    for original, numbers in originals.items():
        axes.axhline(original, color=GRAY, ls="--")
        label = "original" if len(originals) == 1 else f"original of {', '.join(numbers)}"
        axes.annotate(label, (1, original), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)  # fmt: skip
    _name(axes, headlines[0].title, column)
    return made
