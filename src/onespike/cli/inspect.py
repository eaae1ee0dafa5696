"""`onespike inspect`: the contents of a run."""

from __future__ import annotations

import shlex
from pathlib import Path

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Word, try_json, unused


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
    from onespike.deploy.exports import sheet as sheets
    from onespike.runs import storage
    from onespike.runs.forms import real_inputs
    from onespike.runs.recipe_text import convert_command, recipe_record, recipe_text

    pair = runs.load(run)
    if hardware:
        sheet = sheets.sheet(pair.snn, real_inputs(pair, None, 8, 4))
        output.figures(json_file, sheet.to_dict())
        show.hardware(sheet)
        return "export", run, "--format", "integers", "--out", f"{run}-integers"
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
