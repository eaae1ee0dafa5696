"""`onespike inspect`: the contents of a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Word, try_json, unused

if TYPE_CHECKING:
    from onespike.runs import NetworkPair


@command(
    "onespike inspect run",
    "onespike inspect run --recipe > recipe.yaml",
    "onespike inspect run --hardware --json sheet.json",
    json_file=Word(
        "FILE", "Write its recipe to this file, as JSON for the same; with --hardware, the sheet.", None, try_json, ("--json",)
    ),
)  # fmt: skip
def inspect(
    run: Path, *, recipe: bool = False, hardware: bool = False, json_file: Path | None = None
) -> Next:
    """Show a run and the table of its sites.

    It prints the recipe, the source of the thresholds, what spikes, and what stays analog and why. With --hardware it is
    the sheet of the integer form: bytes, bits and spikes of every site, and every operation that is no spike.
    """
    from onespike import runs
    from onespike.cli import show
    from onespike.runs import storage
    from onespike.runs.recipe_text import convert_command, recipe_record, recipe_text

    pair = runs.load(run)
    if hardware:
        return _hardware(pair, run, json_file)
    output.figures(json_file, recipe_record(pair.recipe))
    if recipe:
        print(recipe_text(pair.recipe), end="")
        stored = run / storage.WEIGHTS
        new, weights = unused(run.with_name(f"{run.name}-2")), stored if stored.exists() else None
        return tuple(shlex.split(convert_command(pair, new, weights=weights))[1:])
    show.network(pair)
    settings = ((k, v) for k, v in pair.recipe.to_dict().items() if k != "version")
    provenance = pair.thresholds.provenance
    output.line(
        "recipe         " + ", ".join(f"{k}={v}" for k, v in settings),
        f"calibrated on  {provenance['samples']} {pair.loaded.task.unit} of {pair.data['source']}",
        f"thresholds     {provenance.get('observer', 'unknown')}",
    )
    listed = show.sites(pair.snn)
    output.rows(("site", "what stands there"), [(row["site"], row["neuron"]) for row in listed], left=(0, 1))
    return "report", run


def _hardware(pair: NetworkPair, run: Path, json_file: Path | None) -> Next:
    from onespike.deploy.exports.sheet import sheet
    from onespike.runs.forms import real_inputs

    made = sheet(pair.snn, real_inputs(pair, None, 8, 4))
    output.figures(json_file, made.to_dict())
    columns = {
        "decides by": "decides", "payload bits": "payload_bits", "weight bytes": "weight_bytes",
        "threshold bytes": "threshold_bytes", "state bytes": "state_bytes", "sum bits": "accumulator_bits",
        "measured": "measured_bits", "spikes per input": "events", "at most": "most_events", "bytes sent": "traffic_bytes",
    }  # fmt: skip
    rows = [(row.site, *(_figure(getattr(row, name)) for name in columns.values())) for row in made.sites]
    whole = ("all", *(_figure(made.totals.get(name, "")) for name in columns.values()))
    output.rows(("site", *columns), [*rows, whole], left=(0, 1))
    output.line()
    listed = [(row.layer or "(network)", row.name, row.number, row.width) for row in made.operations]
    output.rows(("layer", "operation that is no spike", "per input", "width"), listed, left=(0, 1, 3))
    left = ", ".join(f"{row.layer} ({row.number} multiplications)" for row in made.floats)
    output.line("", f"products in floats: {left or 'none'}")
    return "export", run, "--format", "integers", "--out", f"{run}-integers"


def _figure(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float) else str(value)
