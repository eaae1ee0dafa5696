"""`onespike doctor`: why a run loses accuracy, and what to do about it."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Word, words
from onespike.errors import UsageError

PARTICIPATION = 8
"""How many inputs show whether every neuron takes part."""


@command(
    "onespike doctor run --data imagenet/val --limit 500",
    "onespike doctor run --data photos --limit 200 \\\n    --passes nearest,center,allocate --budget 0.25",
    interrupted="finished rows of --passes are kept. Run the same command again.",
    images=Word("N", "How many of them to measure in many variants."),
)
def doctor(
    run: Path,
    *,
    data: str,
    annotations: Path | None = None,
    limit: int | None = None,
    images: int | None = None,
    passes: str | None = None,
    budget: float | None = None,
    energy: str | None = None,
    batch_size: int = 16,
    device: str = "cpu",
    json_file: Path | None = None,
) -> Next:
    """Find what costs accuracy, and suggest remedies.

    Checks that every neuron takes part, measures noise at every site, leaves one kind of site analog at a time, tries
    other λ, thresholds and normalizations, and ends with at most five findings, worst first. The exit code is 1 if a
    neuron does not take part. With --passes all rows have the same energy, and finished rows are kept in the run.
    """
    from onespike import runs
    from onespike.calibration.inputs import batches_of
    from onespike.cli import show
    from onespike.diagnosis import checkup, diagnose
    from onespike.diagnosis.measurement import PROBE_IMAGES
    from onespike.evaluation.participation import verify
    from onespike.passes import parse_passes
    from onespike.reports.tables import figure, minus
    from onespike.runs.recipe_text import recipe_text
    from onespike.studies.ablate import FOLDER, ablate_run

    after = ("report", run, *words(data=data, annotations=annotations, limit=limit))
    if passes is None and (budget is not None or energy is not None):
        raise UsageError("--budget and --energy are of the rows of --passes. Give it, too.")
    images = PROBE_IMAGES if images is None else images
    if images < 2:
        raise UsageError(f"the doctor needs at least 2 images, not {images}. Try --images {PROBE_IMAGES}.")
    pair = runs.load(run, device=device)
    items = runs.choose_labeled(pair.loaded, data, annotations, limit)
    if passes is not None:
        rows = []
        chosen = None if passes == "run" else parse_passes(passes)
        options: Any = {
            "budget": budget,
            "energy": energy,
            "batch_size": batch_size,
            "progress": output.progress,
        }
        for row in ablate_run(run, pair, items, passes=chosen, **options):
            output.note(f"{row.what}: {figure(row.headline.spiking)}, {minus(row.headline, error=True)}")
            rows.append(row)
        output.figures(json_file, [row.to_dict() for row in rows])
        show.ablated(rows)
        output.line(f"kept in {run / FOLDER}")
        return after
    if len(items) < 2:
        raise UsageError(f"{data}: the doctor needs at least 2 images. Give more.")
    taking_part = verify(pair.snn, next(batches_of(items, pair.loaded, PARTICIPATION)))
    measured = checkup(pair, items, run, images=images, batch_size=batch_size, progress=output.progress)
    findings = diagnose(measured)
    output.figures(json_file, {"findings": [asdict(finding) for finding in findings], **asdict(measured)})
    show.network(pair)
    output.line(str(taking_part), "")
    show.examined(measured, findings)
    remark = "recipe of this run, as a file for `onespike convert --recipe FILE`:"
    output.line("", remark, recipe_text(pair.recipe).rstrip())
    if not taking_part.ok:
        raise typer.Exit(1)
    return tuple(shlex.split(findings[0].command)[1:]) if findings else after
