"""Output of the commands: tables on a terminal, the same words in a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.cli.progress import clear_status

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from onespike.evaluation.side_by_side import Evaluation
    from onespike.runs import NetworkPair
    from onespike.studies.theory import Row

WIDTH = 160  # for tables in a file or a pipe, which have no width


def console(stderr: bool = False) -> Console:
    """Return the console for results, or for notes."""
    clear_status()
    return _console(stderr)


@cache
def _console(stderr: bool) -> Console:
    """Return the console; rich is imported with the first line."""
    from rich import console as rich

    class Plain(rich.Console):
        def on_broken_pipe(self) -> None:
            raise  # to where the command line handles all errors

    if stderr:
        return rich.Console(stderr=True, soft_wrap=True, highlight=False)
    return Plain(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else WIDTH)


def escape(text: str) -> str:
    from rich import markup

    return markup.escape(text)


def line(text: str = "") -> None:
    console().print(escape(text))


def note(text: str) -> None:
    """Print progress of long work on standard error."""
    console(stderr=True).print(escape(text))


_printed: ContextVar[list[tuple[Sequence[str], list[tuple[str, ...]]]]] = ContextVar("_printed")


@contextmanager
def collected() -> Iterator[None]:
    """Keep the tables that are printed within this context, for `figures` and `tables`."""
    before = _printed.set([])
    try:
        yield
    finally:
        _printed.reset(before)


def rows(
    headers: tuple[str, ...],
    cells: Iterable[tuple[str, ...]],
    left: int = 0,
    right: tuple[int, ...] | None = None,
) -> None:
    """Print a table of figures: columns are right-aligned except the first `left`, or those of `right` are."""
    from rich.table import Table

    right, body = tuple(range(left, len(headers))) if right is None else right, list(cells)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for index, header in enumerate(headers):
        shown.add_column(header, justify="right" if index in right else "left", overflow="fold")
    for row in body:
        shown.add_row(*map(escape, row))
    console().print(shown)
    _printed.get([]).append((headers, body))


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
            write_tables(file, _printed.get())


def network(pair: NetworkPair) -> None:
    """Print one paragraph on what was loaded."""
    loaded = pair.loaded
    line(f"network        {loaded.spec} ({loaded.weights} weights)")
    line(f"preprocessing  {loaded.reading.preprocessing}")
    if loaded.attention:
        line(f"attention      {loaded.attention}")


def spent(pair: NetworkPair) -> None:
    """Print the network's energy on calibration images, in every column, and its loss if measured."""
    from onespike.energy.columns import OF_ALL_MACS, beside

    found = pair.thresholds.provenance
    loss, energy = found.get("loss"), found.get("energy")
    unit = getattr(pair.loaded.task, "unit", "images")
    if loss:
        agreement = "" if loss["agreement"] is None else f", agreement {100 * loss['agreement']:.1f} %"
        kl = "" if loss["kl"] is None else f", KL {loss['kl']:.4f}"
        line(
            f"loss           {100 * loss['drop']:.2f} ± {100 * loss['error']:.2f} points of {loss['measure']} on "
            f"{loss['inputs']} {unit}{agreement}{kl}; at most {100 * loss['max_drop']:g} asked for, {len(loss['tried'])} budgets tried"
        )
    if energy and energy["ratios"]:
        column, budget = pair.recipe.energy, pair.recipe.budget
        asked = f"; budget {column} {budget:g}" if budget is not None and not loss else ""
        error, analog = 100 * energy["relative_error"], energy.get("analog_share")
        line(
            f"energy ratios  {OF_ALL_MACS}, on the last {energy['inputs']} calibration {unit}, ± {error:.1f} %{asked}"
        )
        ratios = energy["ratios"]
        line("               " + "  ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items()))
        if analog is not None and column in ratios:  # runs of earlier versions do not state it
            line(f"               {column} is {beside(column, ratios[column], analog)}")


def sites(snn: nn.Module, brief: bool = False) -> None:
    """Print the table of sites: what spikes with which thresholds, what stays analog and why."""
    from onespike.conversion.network import table

    listed = table(snn)
    spiking = sum(row["spikes"] for row in listed)
    line(f"sites          {spiking} of {len(listed)} spike; analog: " + (_analog(listed) or "none"))
    if brief:
        return
    rows(("site", "what stands there"), [(row["site"], row["neuron"]) for row in listed], left=2)


def _analog(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"{r['site']} ({r['neuron'].removeprefix('analog: ')})" for r in rows if not r["spikes"])


def measured(record: Mapping[str, Any], steps: int, published: float | None = None) -> None:
    """Print the task's figures, and the energy ledger with the meaning of its columns, of an evaluation."""
    from onespike.energy.columns import DEFINITION, READINGS
    from onespike.reports.tables import dearer, fairness
    from onespike.tasks import task_of

    found = task_of(record).summary(record, published)
    names = {"ann": "original (ANN)", "snn": f"spiking (SNN, T={steps})"}
    rows(
        ("", *found.table.headers, "seconds"),
        [
            (names[key], *cells, f"{record['seconds'][key]:.1f}")
            for key, cells in zip(found.networks, found.table.texts(), strict=True)
        ],
        left=1,
    )
    if found.published:
        line(found.published)
    line(found.note + ("" if record["scale"] is None else f", λ = {record['scale']:g}"))
    if found.details is not None:
        line()
        rows(found.details.headers, found.details.texts())
    line()
    energy(record)
    line(DEFINITION)
    line(fairness(record))
    if warning := dearer(record):
        line(f"warning: {warning}")
    if found.parts is not None:
        each, number = found.parts
        shown = ", ".join(
            f"{column} {ratio * record['original_pj'] / number / 1e6:.4g} µJ"
            for column, ratio in record["energy"].items()
            if ratio is not None and column in READINGS
        )
        line(f"energy per {each}: original {record['original_pj'] / number / 1e6:.4g} µJ; {shown}")


def energy(record: Mapping[str, Any]) -> None:
    """Print the ratio of each column, also against an original without its dead work."""
    from onespike.energy.columns import meanings, of_what_spikes
    from onespike.reports.tables import figure

    dead = record["dead_share"]
    alive = None if dead is None else 1 - dead
    body = []
    for column, ratio in record["energy"].items():
        without = ratio / alive if ratio is not None and alive else None
        spiking = of_what_spikes(column, ratio, record["analog_share"])
        body.append((column, figure(ratio, 3), figure(spiking, 3), figure(without, 3), meanings()[column]))
    rows(("energy", "ratio", "of what spikes", "without dead work", "meaning"), body, right=(1, 2, 3))


def again(found: Mapping[str, Any], unit: str) -> None:
    """Print how far the score and the energy depend on the inputs of calibration."""
    from onespike.runs.measuring import spelled

    line()
    line(
        f"{found['repeat']} calibrations on {found['inputs']} {unit} each, drawn from {found['source']} (seed {found['seed']}): "
        f"{found['title']} {spelled(found['score'], 2)}, {found['column']} {spelled(found['ratio'], 3)}; "
        "mean ± standard deviation, least to largest"
    )


def compared(found: list[dict[str, Any]], profile: str) -> None:
    """Print spiking and integer networks on the same images, each with the ratio of its column."""
    from onespike.energy.columns import column_of, integer_reading
    from onespike.reports.tables import comparison, figure, minus
    from onespike.tasks import compared as headlines

    more = {
        "minus spiking": [
            minus(beside, error=True) for beside in headlines([row["beside"] for row in found])
        ],
        "KL, nats": [figure(row.get("kl"), 4) for row in found],
        f"energy ({profile})": [figure(row["ratio"], 3) for row in found],
        "column": [row["column"] for row in found],
    }
    rows(*comparison("network", [row["network"] for row in found], headlines(found), more))
    if integer_reading(found[0]["column"]) is None:
        line(f"no row with 8-bit weights: {column_of(found[0]['column']).meaning}")
    line("differences are of the same inputs; ± is their paired standard error")


def ledger(result: Evaluation) -> None:
    """Print the ledger of each site: MACs, its share of the paper's ratio, and how its neurons fire."""
    from onespike.energy.columns import PAPER

    rows(
        ("site", "MACs per image", f"{PAPER} ratio", "spikes/neuron", "active %", "saturated %"),
        [
            (
                row["site"], f"{row['macs'] / result.images:.4g}", f"{row['ratio']:.4f}" if row["drives"] else "–",
                f"{row['spikes per neuron']:.3f}" if row["spiking"] else "analog",
                f"{100 * row['active share']:.1f}", f"{100 * row['saturated share']:.2f}",
            )
            for row in result.ledger.table()
        ],
    )  # fmt: skip


def theorems(claims: list[Row]) -> None:
    rows(
        ("claim", "held", "worst margin", "statement"),
        [(row.name, f"{row.held}/{row.tried}", f"{row.margin:.3g}", row.statement) for row in claims],
        right=(1, 2),
    )
    for row in claims:
        if not row.holds:
            line(f"{row.name} does not hold: {row.counterexample}")
