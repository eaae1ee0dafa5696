"""Figures in words, the one table in which networks are compared, and tables as CSV and LaTeX."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onespike.runtime.atomic import write_atomically
from onespike.tasks import Headline
from onespike.tasks.intervals import Bounds, spelled

Cells = Sequence[Sequence[str]]
NUMBERS = str.maketrans({"−": "-", "–": ""})
TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$", "±": r"$\pm$", "×": r"$\times$",
        "→": r"$\to$", "λ": r"$\lambda$", "θ": r"$\theta$", "µ": r"$\mu$",
    }
)  # fmt: skip


def figure(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def fairness(evaluation: Mapping[str, Any]) -> str:
    """Return what every ratio depends on: the hardware, what stays analog, and what is dead in both networks."""
    dead, head = evaluation.get("dead_share"), evaluation.get("head_share")
    edges = evaluation.get("edge_share", 0.0)
    analog = evaluation["analog_share"] - edges
    text = f"prices of {evaluation['profile']}; {100 * analog:.1f} % of the MACs stay analog"
    text += f" and {100 * edges:.1f} % are 8-bit integers at the edges" if edges else ""
    text += f" (the output layer has {100 * head:.1f} %)" if head else ""
    text += ": only the strict columns charge them"
    if dead is not None:
        text += f"; {100 * dead:.1f} % cannot reach the output and are dead work in the original, too"
    return text


def dearer(evaluation: Mapping[str, Any]) -> str:
    """Return a warning if the spiking network spends more than the original in some column."""
    above = [f"{name} ({ratio:.3f})" for name, ratio in evaluation["energy"].items() if ratio and ratio > 1]
    if not above:
        return ""
    names = " and ".join([", ".join(above[:-1]), above[-1]] if above[1:] else above)
    return f"in the column{'s' if above[1:] else ''} {names} this network spends more than the original"


def minus(headline: Headline, error: bool = False) -> str:
    """Return how far a figure is from the one that it is compared with; its standard error, if asked for."""
    if headline.difference is None:
        return "–"
    text = f"{headline.difference:+.2f}".replace("-", "−")
    return f"{text} ± {headline.error:.2f}" if error and headline.error is not None else text


def comparison(
    what: str, names: Sequence[str], headlines: Sequence[Headline], more: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the table of networks, forms or runs on the same inputs: headers and rows.

    It states the figure by which they are compared and how far it is from the original's, with 95 % intervals.
    """

    def interval(bounds: Bounds | None, sign: bool = False) -> str:
        return "–" if bounds is None else spelled(bounds, sign=sign).removeprefix("95 %: ")

    rows = []
    for name, headline, *cells in zip(names, headlines, *more.values(), strict=True):
        scores = figure(headline.spiking), interval(headline.bounds)
        rows.append((name, *scores, minus(headline), interval(headline.paired, sign=True), *cells))
    return (what, headlines[0].title if headlines else "score", "95 %", "minus original", "95 %", *more), rows


SHEET = {
    "site": "site", "decides by": "decides", "payload bits": "payload_bits", "weight bytes": "weight_bytes",
    "threshold bytes": "threshold_bytes", "state bytes": "state_bytes", "sum bits": "accumulator_bits",
    "measured": "measured_bits", "spikes per input": "events", "at most": "most_events", "bytes sent": "traffic_bytes",
}  # fmt: skip
OPERATIONS = {"layer": "layer", "operation that is no spike": "name", "per input": "number", "width": "width"}


def sheet_tables(sheet: Mapping[str, Any]) -> list[tuple[tuple[str, ...], list[list[str]]]]:
    """Return the sheet for hardware as tables: its sites with their totals, and the operations that are no spikes."""
    sites = [*sheet["sites"], {"site": "all", **sheet["totals"]}]
    operations = [{**row, "layer": row["layer"] or "(network)"} for row in sheet["operations"]]

    def text(cell: Any) -> str:
        return f"{cell:.0f}" if isinstance(cell, float) else str(cell)

    return [
        (tuple(names), [[text(row.get(name, "")) for name in names.values()] for row in listed])
        for names, listed in ((SHEET, sites), (OPERATIONS, operations))
    ]


def as_csv(headers: Sequence[str], rows: Cells) -> str:
    """Return a table as CSV, with numbers that programs can read."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([cell.translate(NUMBERS) for cell in row] for row in (headers, *rows))
    return buffer.getvalue()


def as_latex(headers: Sequence[str], rows: Cells) -> str:
    """Return a table as a LaTeX `tabular`, its first column to the left."""
    first, *others = (" & ".join(cell.translate(TEX) for cell in row) + r" \\" for row in (headers, *rows))
    columns = "l" + "r" * (len(headers) - 1)
    begin, end = rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
    return "\n".join([begin, r"\hline", first, r"\hline", *others, r"\hline", end, ""])


FORMS: dict[str, Callable[[Sequence[str], Cells], str]] = {".csv": as_csv, ".tex": as_latex}
"""Ending of a file → how a table is written there."""


def write_tables(file: Path, tables: Sequence[tuple[Sequence[str], Cells]]) -> None:
    """Write tables in the form of a file's ending: the first into it, the others beside it as `NAME-2`, `NAME-3`, …."""
    for number, (headers, rows) in enumerate(tables, 1):
        place = file if number == 1 else file.with_stem(f"{file.stem}-{number}")
        write_atomically(place, FORMS[file.suffix](headers, rows))
