"""`onespike inspect`: the contents of a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import JSON, RunFolder, unused


@command("onespike inspect run", "onespike inspect run --recipe > recipe.yaml")
def inspect(
    run: RunFolder,
    recipe: Annotated[
        bool,
        typer.Option("--recipe", help="Print its recipe alone, as YAML for `onespike convert --recipe`."),
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write its recipe to this file, as JSON for the same.",
            callback=JSON,
        ),
    ] = None,
) -> Next:
    """Show a run and the table of its sites.

    It prints the recipe, the source of the thresholds, what spikes, and what stays analog and why.
    """
    from onespike import runs
    from onespike.runs import storage
    from onespike.runs.as_command import convert_command
    from onespike.runs.recipe_file import recipe_record, recipe_text

    pair = runs.load_run(run)
    output.figures(json_file, recipe_record(pair.recipe))
    if recipe:
        print(recipe_text(pair.recipe), end="")
        stored = run / storage.WEIGHTS
        again = convert_command(
            pair, unused(run.with_name(f"{run.name}-2")), weights=stored if stored.exists() else None
        )
        return tuple(shlex.split(again)[1:])
    output.network(pair)
    settings = ((k, v) for k, v in pair.recipe.to_dict().items() if k != "version")
    output.line("recipe         " + ", ".join(f"{k}={v}" for k, v in settings))
    output.line(
        f"calibrated on  {pair.thresholds.provenance['samples']} {pair.loaded.task.unit} of {pair.data['source']}"
    )
    output.line(f"thresholds     {pair.thresholds.provenance.get('observer', 'unknown')}")
    output.sites(pair.snn)
    return "report", run
