"""`onespike search`: the best λ of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from onespike.cli import show
from onespike.cli.commands import command
from onespike.cli.options import Annotations, BatchSize, Device, Json, Limit, RunFolder
from onespike.cli.progress import progress
from onespike.files import write_atomically
from onespike.report import plots
from onespike.search import Trial
from onespike.tune import FOLDER, METRICS, Outcome, search_run


@command(
    "onespike search run --data imagenet/train --trials 50",
    "onespike search run --data photos --objective kl --trials 12 --budget 0.17",
    "onespike search run --data imagenet/train --resume",
    "onespike search run --data coco/train2017 \\\n    --annotations coco/annotations/instances_train2017.json",
    interrupted="finished trials are kept. Go on with the same command and --resume.",
)
def search(
    run: RunFolder,
    data: Annotated[
        str, typer.Option(metavar="DIR", help="Images to search on; those of the calibration are skipped.")
    ],
    annotations: Annotations = None,
    trials: Annotated[int, typer.Option(metavar="N", help="Values of λ in all.")] = 50,
    objective: Annotated[
        str | None,
        typer.Option(help="top1, or kl (no labels; the default where there are none); ap for detectors."),
    ] = None,
    sampler: Annotated[str, typer.Option(help="gp, tpe or grid.")] = "gp",
    budget: Annotated[float | None, typer.Option(help="The largest energy ratio allowed.")] = None,
    energy: Annotated[
        str, typer.Option(help="The ratio meant: counts, nonzero, binary or strict.")
    ] = "counts",
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Also show the front of metric against energy.")
    ] = False,
    per_site: Annotated[
        str | None, typer.Option(help="site or kind: a step for each, from measured sensitivity.")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="An optuna storage to share; by default a file in the run."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a search; give the same options again.")
    ] = False,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the network once; pays off over many trials.")
    ] = False,
    limit: Limit = None,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
    json_file: Json = None,
) -> None:
    """Find the best λ of a run and keep it there.

    λ = 1 and the preset's value are always tried. Every finished trial is stored at once, so that a search can be
    interrupted, and shared between machines.
    """

    def report(trial: Trial, done: int, total: int) -> None:
        value = "given up early" if trial.value is None else f"{trial.value:.4g}"
        cost = "" if trial.energy is None else f", energy {trial.energy:.3f}"
        show.note(f"trial {done}/{total}: λ = {trial.scale:.4f}, {value}{cost} ({trial.seconds:.1f} s)")

    outcome = search_run(
        run, data, annotations=annotations, trials=trials, objective=objective, sampler=sampler,
        budget=budget, energy=energy, front=pareto, per_site=per_site, limit=limit, batch_size=batch_size, device=device,
        compiled=compiled, url=storage, resume=resume, report=report, progress=progress,
    )  # fmt: skip
    if json_file is not None:
        write_atomically(json_file, json.dumps(outcome.to_dict(), indent=1) + "\n")
    figure = plots.scale_search(
        outcome.search.trials, outcome.search.best, METRICS[outcome.objective], energy, outcome.search.front()
    )
    write_atomically(run / FOLDER / "search.png", plots.png(figure))
    _show(run, outcome, pareto)


def _show(run: Path, outcome: Outcome, pareto: bool) -> None:
    best, metric = outcome.search.best, METRICS[outcome.objective]
    if pareto:
        show.rows(
            ("λ", metric, f"energy ({outcome.energy})"),
            [(f"{t.scale:.4f}", f"{t.value:.4g}", f"{t.energy:.3f}") for t in outcome.search.front()],
        )
    cost = "" if best.energy is None else f", energy {best.energy:.3f} ({outcome.energy})"
    show.line(f"best λ    {best.scale:.4f}: {metric} {best.value:.4g}{cost}")
    if outcome.per_site is not None:
        found = outcome.per_site
        verdict = "kept" if found["better"] else "not better, so the single λ is kept"
        show.line(
            f"per {found['by']}  {metric} {found['value']:.4g} at energy {found['energy']:.3f}, "
            f"against {found['single']:.4g} with one λ: {verdict}"
        )
    show.line(
        f"cost      {outcome.forwards} forward passes in {outcome.seconds:.0f} s; evaluating the whole folder once "
        f"takes {outcome.available}"
    )
    show.line(f"kept in   {run}; figure and trials in {run / FOLDER}")
