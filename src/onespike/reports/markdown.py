"""A gathered record → Markdown, for a README, an issue or a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onespike.energy.columns import FOR_WHOM, OF_ALL_MACS, beside, of_what_spikes
from onespike.tasks import task_of

CITATION = """@article{chen2025onetimestep,
  title  = {One-Timestep is Enough: Achieving High-performance ANN-to-SNN Conversion via Scale-and-Fire Neurons},
  author = {Chen, Qiuyang and Yang, Huiqi and Meng, Qingyan and Ma, Zhengyu},
  year   = {2025}
}"""
"""The paper of the method."""


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""Return a Markdown table; bars and line breaks in a cell cannot break it.

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
    """Return the report of one run, without pictures."""
    network, evaluation = record["network"], record["evaluation"]
    parts = [
        f"# {_cell(network['spec'])} as a spiking network",
        f"Weights: {_cell(network['weights'])}. Preprocessing: {_cell(network['preprocessing'])}.",
        f"Calibrated on {record['calibration']['images']} {unit_of(record)} of {_cell(record['calibration']['source'])}.",
    ]
    if evaluation is not None:
        parts += [*scores(record, evaluation), energy(record, evaluation), _parts(evaluation)]
    parts += [
        _sites(record["sites"]),
        "## Recipe",
        table(["field", "value"], [[k, str(v)] for k, v in record["recipe"].items()]),
    ]
    parts += [
        "As a file for `onespike convert --recipe FILE`:",
        f"```yaml\n{record['recipe_text'].rstrip()}\n```",
    ]
    parts += ["## Command", f"    {record['command']}"]
    parts.append("Made on: " + ", ".join(f"{name} {_cell(value)}" for name, value in record["made"].items()))
    parts.append(
        "Versions: " + ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    )
    parts += ["## Citation", f"```bibtex\n{CITATION}\n```"]
    return "\n\n".join(parts) + "\n"


def unit_of(record: Mapping[str, Any]) -> str:
    """Return what the inputs of a run are called, in the plural."""
    return str(record.get("unit", "images"))


def _networks(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return ("ann", "original"), ("snn", f"spiking, T = {record['recipe'].get('steps', 1)}")


def scores(record: Mapping[str, Any], evaluation: Mapping[str, Any]) -> list[str]:
    """Return the task's measurements: both networks' figures, and its details; speed where the machine is known."""
    found = task_of(evaluation).summary(evaluation, record["network"]["published_top1"])
    names, timed = dict(_networks(record)), "made" in record
    rows = [[names[key], *cells] for key, cells in zip(found.networks, found.table.texts(), strict=True)]
    for key, row in zip(found.networks, rows, strict=True):
        row += [figure(evaluation["images"] / evaluation["seconds"][key], 1)] if timed else []
    source = record["data"]["source"] if record.get("data") else None
    sentences = [found.note + ("" if source is None else f", of {_cell(source)}"), found.published]
    parts = [
        f"## {found.title}",
        table(["network", *found.table.headers, *([f"{unit_of(record)}/s"] if timed else [])], rows),
        " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences if text),
    ]
    return parts if found.details is None else [*parts, table(found.details.headers, found.details.texts())]


def fairness(evaluation: Mapping[str, Any]) -> str:
    """Return what every ratio depends on: the hardware, what stays analog, and what is dead in both networks."""
    dead, head = evaluation.get("dead_share"), evaluation.get("head_share")
    shares = [
        f"{100 * evaluation['analog_share']:.1f} % of the MACs stay analog"
        + (f" (the output layer has {100 * head:.1f} %)" if head else "")
        + ": only the strict columns charge them"
    ]
    if dead is not None:
        shares.append(f"{100 * dead:.1f} % cannot reach the output and are dead work in the original, too")
    return f"prices of {evaluation['profile']}; " + "; ".join(shares)


def dearer(evaluation: Mapping[str, Any]) -> str:
    """Return a warning if the spiking network spends more than the original in some column.

    >>> dearer({"energy": dict(counts=1.24, binary=0.2, nonzero=None)})
    'in the column counts (1.240) this network spends more than the original'
    """
    above = [f"{name} ({ratio:.3f})" for name, ratio in evaluation["energy"].items() if ratio and ratio > 1]
    if not above:
        return ""
    named = " and ".join([", ".join(above[:-1]), above[-1]] if above[1:] else above)
    return f"in the column{'s' if above[1:] else ''} {named} this network spends more than the original"


def energy(record: Mapping[str, Any], evaluation: Mapping[str, Any]) -> str:
    """Return the ratio in every column, the run's own first, with a warning where one exceeds 1."""
    own, analog = record["energy"], evaluation["analog_share"]
    rows = [
        [
            f"**{name}**" if name == own else name, figure(ratio, 3), figure(of_what_spikes(name, ratio, analog), 3),
            record["energy_columns"][name],
        ]
        for name, ratio in evaluation["energy"].items()
    ]  # fmt: skip
    ratio = evaluation["energy"][own]
    return (
        f"## Energy\n\nThis run's column is {own}: {'–' if ratio is None else beside(own, ratio, analog)}.\n\n"
        + (f"**Warning:** {warning}.\n\n" if (warning := dearer(evaluation)) else "")
        + table(["column", "ratio", "of what spikes", "meaning"], rows)
        + f"\n\n{record['energy_definition']}; {fairness(evaluation)}.\n\n{FOR_WHOM}"
    )


def _parts(evaluation: Mapping[str, Any]) -> str:
    """Return what each column pays for."""
    parts = [
        [column, name, figure(part, 4)]
        for column, found in evaluation["energy_parts"].items()
        for name, part in found.items()
    ]
    return table(["column", "paid for", "ratio"], parts)


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


def _columns(evaluation: Mapping[str, Any]) -> dict[str, str]:
    """Figures with their intervals."""
    found = task_of(evaluation).columns(evaluation)
    return {
        name: figure(value, digits) + (f" ({interval})" if interval else "")
        for name, (value, digits, interval) in found.items()
    }


def compare_markdown(records: Sequence[Mapping[str, Any]], differences: Mapping[str, Sequence[str]]) -> str:
    """Return several runs in one table."""
    energy, scored = list(records[0]["evaluation"]["energy"]), _columns(records[0]["evaluation"])
    rows = []
    for index, record in enumerate(records):
        e = record["evaluation"]
        rows.append([
            record["run"], record["network"]["spec"],
            *_columns(e).values(),
            *(figure(e["energy"][c], 3) for c in energy), _percent(e["analog_share"]), _percent(e["dead_share"]),
            *(values[index] for values in differences.values()),
        ])  # fmt: skip
    headers = ["run", "network", *scored, *energy, "analog MACs %", "dead MACs %", *differences]
    prices = ", ".join(dict.fromkeys(record["evaluation"]["profile"] for record in records))
    return f"# Runs compared\n\n{table(headers, rows)}\n\n95 % intervals in parentheses. Energy {OF_ALL_MACS}, at the prices of {prices}.\n"
