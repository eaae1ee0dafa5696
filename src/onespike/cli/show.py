"""Pairs of networks and evaluations, as several commands print them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from onespike.cli.output import line, rows
from onespike.conversion.network import table
from onespike.energy import columns
from onespike.evaluation.side_by_side import Evaluation
from onespike.reports.tables import comparison, dearer, fairness, figure, minus
from onespike.runs import NetworkPair
from onespike.runs.forms import Row
from onespike.tasks import compared as headlines
from onespike.tasks import task_of


def network(pair: NetworkPair) -> None:
    """Print one paragraph on what was loaded."""
    loaded = pair.loaded
    line(f"network        {loaded.spec} ({loaded.weights} weights)")
    line(f"preprocessing  {loaded.reading.preprocessing}")
    if loaded.attention:
        line(f"attention      {loaded.attention}")


def sites(snn: nn.Module) -> list[dict[str, Any]]:
    """Print how many sites spike, and what does not, by kind and with the reason; return the table of sites."""
    listed, others = table(snn), dict[str, list[str]](analog=[])
    for row in listed:
        if not row["spikes"]:
            kind, _, reason = row["neuron"].partition(": ")
            others.setdefault(kind, []).append(f"{row['site']} ({reason})")
    named = "; ".join(f"{kind}: {', '.join(sites) or 'none'}" for kind, sites in others.items())
    line(f"sites          {sum(row['spikes'] for row in listed)} of {len(listed)} spike; {named}")
    return listed


def spent(pair: NetworkPair) -> None:
    """Print the network's energy on calibration images, in every column, and its loss if measured."""
    provenance, unit = pair.thresholds.provenance, getattr(pair.loaded.task, "unit", "images")
    loss, energy = provenance.get("loss"), provenance.get("energy")
    if loss:
        agreement = "" if loss["agreement"] is None else f", agreement {100 * loss['agreement']:.1f} %"
        kl = "" if loss["kl"] is None else f", KL {loss['kl']:.4f}"
        line(
            f"loss           {100 * loss['drop']:.2f} ± {100 * loss['error']:.2f} points of {loss['measure']} on "
            f"{loss['inputs']} {unit}{agreement}{kl}; at most {100 * loss['max_drop']:g} asked for, {len(loss['tried'])} budgets tried"
        )
    if energy and (ratios := energy["ratios"]):
        column, budget = pair.recipe.energy, pair.recipe.budget
        asked = f"; budget {column} {budget:g}" if budget is not None and not loss else ""
        line(
            f"energy ratios  {columns.OF_ALL_MACS}, on the last {energy['inputs']} calibration {unit}, "
            f"± {100 * energy['relative_error']:.1f} %{asked}",
            "               " + "  ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items()),
        )
        if "analog_share" in energy and column in ratios:  # runs of earlier versions do not state it
            line(f"{'':15}{column} is {columns.beside(column, ratios[column], energy['analog_share'])}")


def evaluated(pair: NetworkPair, result: Evaluation) -> None:
    """Print a pair and its evaluation."""
    network(pair)
    sites(pair.snn)
    line()
    measured(result.to_dict(), result.steps, pair.loaded.published_top1)


def measured(record: Mapping[str, Any], steps: int, published: float | None = None) -> None:
    """Print the task's figures, and the energy ledger with the meaning of its columns, of an evaluation."""
    summary = task_of(record).summary(record, published)
    names = {"ann": "original (ANN)", "snn": f"spiking (SNN, T={steps})"}
    networks = zip(summary.networks, summary.table.texts(), strict=True)
    cells = [(names[key], *texts, f"{record['seconds'][key]:.1f}") for key, texts in networks]
    rows(("", *summary.table.headers, "seconds"), cells, left=(0,))
    if summary.published:
        line(summary.published)
    line(summary.note + ("" if record["scale"] is None else f", λ = {record['scale']:g}"))
    if summary.details is not None:
        line()
        rows(summary.details.headers, summary.details.texts())
    line()
    _energy(record)
    line(columns.DEFINITION, fairness(record))
    if warning := dearer(record):
        line(f"warning: {warning}")
    if summary.parts is not None:
        each, number = summary.parts
        original = record["original_pj"] / number / 1e6
        read = {name: record["energy"].get(name) for name in columns.READINGS}
        ratios = [f"{name} {ratio * original:.4g} µJ" for name, ratio in read.items() if ratio is not None]
        line(f"energy per {each}: original {original:.4g} µJ; {', '.join(ratios)}")


def _energy(record: Mapping[str, Any]) -> None:
    """Print the ratio of each column, also against an original without its dead work."""
    alive = 1 - (1 if record["dead_share"] is None else record["dead_share"])
    body = []
    for column, ratio in record["energy"].items():
        without = ratio / alive if ratio is not None and alive else None
        ratios = ratio, columns.of_what_spikes(column, ratio, record["analog_share"]), without
        body.append((column, *(figure(value, 3) for value in ratios), columns.meanings()[column]))
    rows(("energy", "ratio", "of what spikes", "without dead work", "meaning"), body, left=(0, 4))


def compared(networks: list[dict[str, Any]], profile: str) -> None:
    """Print spiking and integer networks on the same images, each with the ratio of its column."""
    more = {
        "minus spiking": [minus(one, error=True) for one in headlines([row["beside"] for row in networks])],
        "KL, nats": [figure(row.get("kl"), 4) for row in networks],
        "energy": [figure(row["ratio"], 3) for row in networks],
        "all charged": [figure(row["strict"], 3) for row in networks],
        "column": [row["column"] for row in networks],
    }
    line()
    rows(*comparison("network", [row["network"] for row in networks], headlines(networks), more))
    column = networks[0]["column"]
    if columns.integer_reading(column) is None:
        line(f"no row with 8-bit weights: {columns.column_of(column).meaning}")
    prices = f"energy by {profile}, in the column named; all charged: in its strict column"
    line("differences are of the same inputs; ± is their paired standard error", prices)


def forms(measured: list[Row], batch: int) -> None:
    """Print the forms of a run by score, time and size, and why others do not exist."""
    done = [row for row in measured if not row.refused]
    more = {
        f"ms per batch of {batch}": [f"{row.milliseconds:.1f}" for row in done],
        "MB": [f"{(row.bytes or 0) / 1e6:.2f}" for row in done],
    }
    rows(*comparison("form", [row.form for row in done], [row.headline for row in done], more), left=(0,))
    for row in measured:
        if row.refused:
            line(f"{row.form}: {row.refused}")


def ledger(result: Evaluation) -> None:
    """Print the ledger of each site: MACs, its share of the paper's ratio, and how its neurons fire."""
    cells = []
    for row in result.ledger.table():
        firing = "8 bits" if row["dense"] else "analog"
        if row["spiking"]:
            firing = f"{row['spikes per neuron']:.3f}"
        ratio = f"{row['ratio']:.4f}" if row["drives"] else "–"
        shares = f"{100 * row['active share']:.1f}", f"{100 * row['saturated share']:.2f}"
        cells.append((row["site"], f"{row['macs'] / result.images:.4g}", ratio, firing, *shares))
    headers = ("site", "MACs per image", f"{columns.PAPER} ratio", "spikes/neuron", "active %", "saturated %")
    line()
    rows(headers, cells)
