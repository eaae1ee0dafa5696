"""`onespike verify`: the theorems, and the neurons of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.errors import UsageError


@command("onespike verify --trials 1000", "onespike verify run --data imagenet/val")
def verify(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="Also check that every neuron of this run takes part."),
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Images for that check.")] = None,
    trials: Annotated[int, typer.Option(metavar="N", help="Random cases per claim.")] = 200,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random cases.")] = 0,
) -> Next:
    """Check the theorems, and the neurons of a run.

    Equation 5, Theorems 1 to 3 and the fire function are tested on random cases in exact arithmetic; the exit code
    is 1 if one does not hold.
    """
    from onespike import runs
    from onespike.studies import theory

    if trials < 1:
        raise UsageError(f"trials must be at least 1, not {trials}. Try 200.")
    if (run is None) != (data is None):
        raise UsageError("a run is checked with images. Give both: onespike verify RUN --data DIR.")
    found = runs.verify_run(run, data) if run and data else None
    rows = theory.check_all(trials, seed)
    output.theorems(rows)
    if found:
        output.line()
        output.line(str(found))
    if not all(row.holds for row in rows) or (found and not found.ok):
        raise typer.Exit(1)
    return ("demo",) if run is None else ("evaluate", run, "--data", data)
