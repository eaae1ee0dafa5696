"""`onespike search`: the best λ of a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Annotations, BatchSize, Device, Json, Limit, Prices, RunFolder, held_out
from onespike.cli.progress import progress
from onespike.runtime.atomic import write_atomically

if TYPE_CHECKING:
    from onespike.runs.search_run import Outcome, Spent
    from onespike.scale_search import Trial


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
        str, typer.Option(metavar="DIR", help="Images to search on; calibration images are skipped.")
    ],
    annotations: Annotations = None,
    trials: Annotated[int, typer.Option(metavar="N", help="Total number of λ values.")] = 50,
    objective: Annotated[
        str | None,
        typer.Option(
            help="kl (no labels), or one of the network's task: accuracy and the like, the default."
        ),
    ] = None,
    sampler: Annotated[str, typer.Option(help="gp, tpe or grid.")] = "gp",
    budget: Annotated[
        float | None, typer.Option(help="The largest energy ratio allowed, of all MACs of the original.")
    ] = None,
    energy: Annotated[
        str | None,
        typer.Option(help="The energy column: see `onespike list columns`; the run's by default."),
    ] = None,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Also show the front of metric against energy.")
    ] = False,
    per_site: Annotated[
        str | None, typer.Option(help="site or kind: one step for each, from measured sensitivity.")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="An optuna storage to share; by default a file in the run."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a search; give the same options again.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget the trials of an earlier search with these options.")
    ] = False,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the network once; pays off over many trials.")
    ] = False,
    limit: Limit = None,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
    profile: Prices = None,
    json_file: Json = None,
) -> Next:
    """Find the best λ of a run and keep it there.

    λ = 1 and the preset's value are always tried. Every finished trial is stored at once, so that a search can be
    interrupted, and shared between machines.
    """
    from onespike.energy.columns import PAPER
    from onespike.reports import plots
    from onespike.runs.search_run import FOLDER, search_run

    def report(trial: Trial, done: int, total: int) -> None:
        value = "given up early" if trial.value is None else f"{trial.value:.4g}"
        cost = "" if trial.energy is None else f", energy {trial.energy:.3f}"
        output.note(f"trial {done}/{total}: λ = {trial.scale:.4f}, {value}{cost} ({trial.seconds:.1f} s)")

    outcome = search_run(
        run, data, annotations=annotations, trials=trials, objective=objective, sampler=sampler,
        budget=budget, energy=energy, front=pareto, per_site=per_site, limit=limit, batch_size=batch_size, device=device,
        compiled=compiled, url=storage, resume=resume, fresh=fresh, report=report, progress=progress,
    )  # fmt: skip
    output.figures(json_file, outcome.to_dict())
    figure = plots.scale_search(outcome.search, outcome.title, outcome.energy or PAPER)
    write_atomically(run / FOLDER / "search.png", plots.png(figure))
    _show(run, outcome, pareto)
    _spent(run, data, outcome.spent)
    images = held_out(data)
    return ("inspect", run) if images is None else ("evaluate", run, "--data", images)


def _spent(run: Path, data: str, spent: Spent) -> None:
    """Print the energy before and after, with a warning if it rises."""
    if spent.before is None or spent.after is None:
        return
    from onespike.energy.columns import beside
    from onespike.energy.profiles import profile

    limit = "" if spent.budget is None else f"; the run's budget is {spent.budget:g}"
    after = beside(spent.column, spent.after, spent.analog_share)
    output.line(f"energy    {spent.before:.3f} → {after} ({spent.column}, {profile().name}{limit})")
    if spent.rises:
        wanted = spent.before if spent.budget is None else spent.budget
        words = ("--budget", f"{wanted:.3g}", "--energy", spent.column)
        output.line(
            f"warning   the λ that is kept spends {spent.after / spent.before:.2f} times the energy of before. "
            f"To stay within it, as a ratio of all MACs: {shlex.join(['onespike', 'search', str(run), '--data', data, *words])}"
        )


def _show(run: Path, outcome: Outcome, pareto: bool) -> None:
    from onespike.energy.columns import PAPER, beside, of_what_spikes
    from onespike.reports.tables import figure
    from onespike.runs.search_run import FOLDER

    best, metric, column, analog = (
        outcome.search.best,
        outcome.title,
        outcome.energy or PAPER,
        outcome.spent.analog_share,
    )
    if pareto:
        output.rows(
            ("λ", metric, f"energy ({column})", "of what spikes"),
            [
                (f"{t.scale:.4f}", f"{t.value:.4g}", figure(t.energy, 3), figure(of_what_spikes(column, t.energy, analog), 3))
                for t in outcome.search.front()
            ],
        )  # fmt: skip
    cost = "" if best.energy is None else f", energy {beside(column, best.energy, analog)} ({column})"
    output.line(f"best λ    {best.scale:.4f}: {metric} {best.value:.4g}{cost}")
    if outcome.per_site is not None:
        found = outcome.per_site
        verdict = "kept" if found["better"] else "not better, so the single λ is kept"
        output.line(
            f"per {found['by']}  {metric} {found['value']:.4g} at energy {found['energy']:.3f}, "
            f"against {found['single']:.4g} with one λ: {verdict}"
        )
    output.line(
        f"cost      {outcome.forwards} forward passes in {outcome.seconds:.0f} s; evaluating the whole folder once "
        f"takes {outcome.available}"
    )
    output.line(f"kept in   {run}; figure and trials in {run / FOLDER}")
