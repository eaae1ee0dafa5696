"""A gathered record → Markdown, for a README, an issue or a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onespike.report.scores import FIGURES, KINDS, columns, detects


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""A Markdown table; bars and line breaks in a cell cannot break it.

    >>> print(table(["a"], [["x|y"]]))
    | a |
    |---|
    | x\|y |
    """
    lines = [list(headers), ["---"] * len(headers), *rows]
    texts = ["| " + " | ".join(_cell(c) for c in line) + " |" for line in lines]
    texts[1] = "|" + "---|" * len(headers)
    return "\n".join(texts)


def _cell(text: str) -> str:
    text = " ".join(str(text).split())
    for mark, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|")):
        text = text.replace(mark, safe)
    return text


def figure(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def markdown(record: Mapping[str, Any]) -> str:
    """The report of one run, without pictures."""
    network, evaluation = record["network"], record["evaluation"]
    parts = [
        f"# {_cell(network['spec'])} as a spiking network",
        f"Weights: {_cell(network['weights'])}. Preprocessing: {_cell(network['preprocessing'])}.",
        f"Calibrated on {record['calibration']['images']} images of {_cell(record['calibration']['source'])}.",
    ]
    if evaluation is not None:
        scored = _precision if detects(evaluation) else _accuracy
        parts += [scored(record, evaluation), _energy(record, evaluation)]
    parts += [
        _sites(record["sites"]),
        "## Recipe",
        table(["field", "value"], [[k, str(v)] for k, v in record["recipe"].items()]),
    ]
    parts += ["## Command", f"    {record['command']}"]
    parts.append(
        "Versions: " + ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    )
    return "\n\n".join(parts) + "\n"


def _networks(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return ("ann", "original"), ("snn", f"spiking, T = {record['recipe'].get('steps', 1)}")


def _precision(record: Mapping[str, Any], evaluation: Mapping[str, Any]) -> str:
    rows = [
        [name, KINDS[kind], *(figure(evaluation[key][kind][f], 1) for f in FIGURES)]
        for kind in evaluation["ann"]
        for key, name in _networks(record)
    ]
    pairs = [(kind, key) for kind in evaluation["ann"] for key in ("ann", "snn")]
    classes = [
        [name, *(figure(row[key][kind], 1) for kind, key in pairs)]
        for name, row in evaluation["classes"].items()
    ]
    return "\n\n".join(
        [
            "## Precision",
            table(["network", "of", *FIGURES], rows),
            f"In percent, {evaluation['images']} images of {_cell(record['data']['source'])} with "
            f"{evaluation['objects']} objects.",
            table(["class", *(f"{key.upper()} {KINDS[kind]} AP" for kind, key in pairs)], classes),
        ]
    )


def _accuracy(record: Mapping[str, Any], evaluation: Mapping[str, Any]) -> str:
    rows = [
        [
            name,
            figure(evaluation[key]["top1"]),
            figure(evaluation[key]["top5"]),
            figure(evaluation["images"] / evaluation["seconds"][key], 1),
        ]
        for key, name in _networks(record)
    ]
    published = record["network"]["published_top1"]
    note = "" if published is None else f" Published top-1 of these weights: {published:.2f} %."
    return (
        "## Accuracy\n\n" + table(["network", "top-1 %", "top-5 %", "images/s"], rows)
        + f"\n\nAgreement {evaluation['agreement']:.2f} %, KL {evaluation['kl']:.4f} nats, {evaluation['images']} "
        f"images of {_cell(record['data']['source'])}.{note}"
    )  # fmt: skip


def _energy(record: Mapping[str, Any], evaluation: Mapping[str, Any]) -> str:
    rows = [
        [name, figure(ratio, 3), record["energy_columns"][name]]
        for name, ratio in evaluation["energy"].items()
    ]
    return (
        "## Energy\n\n" + table(["column", "ratio", "meaning"], rows) + f"\n\n{record['energy_definition']}."
    )


def _sites(sites: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            row["site"], row["neuron"], figure(row.get("spikes"), 3), _percent(row.get("energy_share")),
            _percent(row.get("dead_channels")), _percent(row.get("saturated")), figure(row.get("snr_db"), 1),
        ]
        for row in sites
    ]  # fmt: skip
    headers = ["site", "what stands there", "spikes/neuron", "energy %", "dead %", "saturated %", "SNR dB"]
    return "## Sites\n\n" + table(headers, rows)


def _percent(value: float | None) -> str:
    return figure(None if value is None else 100 * value)


def compare_markdown(records: Sequence[Mapping[str, Any]], differences: Mapping[str, Sequence[str]]) -> str:
    """Several runs in one table."""
    energy, scored = list(records[0]["evaluation"]["energy"]), columns(records[0]["evaluation"])
    rows = []
    for index, record in enumerate(records):
        e = record["evaluation"]
        rows.append([
            record["run"], record["network"]["spec"],
            *(figure(value, digits) for value, digits in columns(e).values()),
            *(figure(e["energy"][c], 3) for c in energy), *(values[index] for values in differences.values()),
        ])  # fmt: skip
    return "# Runs compared\n\n" + table(["run", "network", *scored, *energy, *differences], rows) + "\n"
