"""What the commands print: tables on a terminal, the same words in a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from onespike.convert import table
from onespike.energy import COLUMNS, DEFINITION
from onespike.evaluate import Evaluation
from onespike.pipeline import Pair
from onespike.report.scores import FIGURES
from onespike.theory import Row

WIDTH = 160  # of tables in a file or a pipe, which have no width of their own
console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else WIDTH)


def line(text: str = "") -> None:
    console.print(escape(text))


def _table(*headers: str, right: tuple[int, ...] = ()) -> Table:
    result = Table(box=None, pad_edge=False, header_style="bold")
    for index, header in enumerate(headers):
        result.add_column(header, justify="right" if index in right else "left", overflow="fold")
    return result


def note(text: str) -> None:
    """Progress of long work, on standard error."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(escape(text))


def rows(headers: tuple[str, ...], cells: Iterable[tuple[str, ...]]) -> None:
    shown = _table(*headers, right=tuple(range(len(headers))))
    for row in cells:
        shown.add_row(*map(escape, row))
    console.print(shown)


def network(pair: Pair) -> None:
    """One paragraph on what was loaded."""
    loaded = pair.loaded
    line(f"network        {loaded.spec} ({loaded.weights} weights)")
    line(f"preprocessing  {loaded.preprocessing}")
    if loaded.attention:
        line(f"attention      {loaded.attention}")


def sites(snn: nn.Module, brief: bool = False) -> None:
    """The table of sites: what spikes with which thresholds, what stays analog and why."""
    rows = table(snn)
    spiking = sum(row["spikes"] for row in rows)
    line(f"sites          {spiking} of {len(rows)} spike; analog: " + (_analog(rows) or "none"))
    if brief:
        return
    shown = _table("site", "what stands there")
    for row in rows:
        shown.add_row(escape(row["site"]), escape(row["neuron"]))
    console.print(shown)


def _analog(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"{r['site']} ({r['neuron'].removeprefix('analog: ')})" for r in rows if not r["spikes"])


def evaluation(result: Evaluation, published: float | None = None) -> None:
    """Accuracies, agreement and the energy ledger with the meaning of its columns."""
    record = {**result.to_dict(), "steps": result.steps}
    scale = "" if record["scale"] is None else f", λ = {record['scale']:g}"
    if "classes" in record:
        _precision(record, scale)
    else:
        _accuracy(record, scale, published)
    line()
    ledger = _table("energy", "ratio", "meaning", right=(1,))
    for column, ratio in record["energy"].items():
        ledger.add_row(column, "–" if ratio is None else f"{ratio:.3f}", escape(COLUMNS[column]))
    console.print(ledger)
    line(DEFINITION)


def _networks(record: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return ("ann", "original (ANN)"), ("snn", f"spiking (SNN, T={record['steps']})")


def _precision(record: dict[str, Any], scale: str) -> None:
    """COCO's figures of both networks for boxes and masks, then AP of each class."""
    names = {"bbox": "boxes", "segm": "masks"}
    rows(
        ("", "", *FIGURES, "seconds"),
        [
            (name, names[kind], *(_figure(record[key][kind][f]) for f in FIGURES), f"{record['seconds'][key]:.1f}")
            for kind in record["ann"]
            for key, name in _networks(record)
        ],
    )  # fmt: skip
    line(f"{record['images']} images, {record['objects']} objects{scale}; figures in percent")
    line()
    columns = [(kind, key) for kind in record["ann"] for key in ("ann", "snn")]
    rows(
        ("class", *(f"{names[kind]} {key.upper()}" for kind, key in columns)),
        [
            (name, *(_figure(row[key][kind]) for kind, key in columns))
            for name, row in record["classes"].items()
        ],
    )


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _accuracy(record: dict[str, Any], scale: str, published: float | None) -> None:
    scores = _table("", "top-1 %", "top-5 %", "seconds", right=(1, 2, 3))
    for key, name in _networks(record):
        figures = [record[key][k] for k in ("top1", "top5")]
        cells = ["–" if f is None else f"{f:.2f}" for f in figures]
        scores.add_row(name, *cells, f"{record['seconds'][key]:.1f}")
    console.print(scores)
    if published is not None:
        line(f"published top-1 of these weights: {published:.2f} % (on the whole test set)")
    line(
        f"agreement {record['agreement']:.2f} %, KL {record['kl']:.4f} nats, {record['images']} images{scale}"
    )


def ledger(result: Evaluation) -> None:
    """The ledger of each site: MACs, its share of the counts ratio, and how its neurons fire."""
    rows(
        ("site", "MACs an image", "counts ratio", "spikes/neuron", "active %", "saturated %"),
        [
            (
                row["site"], f"{row['macs'] / result.images:.4g}", f"{row['ratio']:.4f}" if row["drives"] else "–",
                f"{row['spikes per neuron']:.3f}" if row["spiking"] else "analog",
                f"{100 * row['active share']:.1f}", f"{100 * row['saturated share']:.2f}",
            )
            for row in result.ledger.table()
        ],
    )  # fmt: skip


def theorems(rows: list[Row]) -> None:
    shown = _table("claim", "held", "worst margin", "statement", right=(1, 2))
    for row in rows:
        verdict = f"{row.held}/{row.tried}"
        shown.add_row(escape(row.name), verdict, f"{row.margin:.3g}", escape(row.statement))
    console.print(shown)
    for row in rows:
        if not row.holds:
            line(f"{row.name} does not hold: {row.counterexample}")
