"""`onespike search`: the best λ of a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Word, held_out
from onespike.cli.progress import progress

if TYPE_CHECKING:
    from onespike.runs import NetworkPair
    from onespike.scale_search import Search, Trial


@command(
    "onespike search run --data imagenet/train --trials 50",
    "onespike search run --data photos --objective kl --trials 12 --budget 0.17",
    "onespike search run --data imagenet/train --resume",
    "onespike search run --data coco/train2017 \\\n    --annotations coco/annotations/instances_train2017.json",
    interrupted="finished trials are kept. Go on with the same command and --resume.",
    data=Word("DIR", "Images to search on; calibration images are skipped."),
    energy=Word("COLUMN", "Also measure this energy and show its front: see `onespike list columns`."),
)
def search(
    run: Path,
    *,
    data: str,
    annotations: Path | None = None,
    trials: int = 50,
    objective: str | None = None,
    sampler: str = "gp",
    budget: float | None = None,
    energy: str | None = None,
    storage: str | None = None,
    resume: bool = False,
    fresh: bool = False,
    limit: int | None = None,
    batch_size: int = 16,
    device: str = "cpu",
    profile: str | None = None,
    json_file: Path | None = None,
) -> Next:
    """Find the best λ of a run and keep it there.

    λ = 1 and the preset's value are always tried. Every finished trial is stored at once, so that a search can be
    interrupted, and shared between machines.
    """
    from onespike import runs

    search_and_show(
        run, runs.load(run, device=device), data, json_file=json_file, annotations=annotations, trials=trials,
        objective=objective, sampler=sampler, budget=budget, energy=energy, limit=limit, batch_size=batch_size,
        url=storage, resume=resume, fresh=fresh,
    )  # fmt: skip
    images = held_out(data)
    return ("inspect", run) if images is None else ("evaluate", run, "--data", images)


def search_and_show(
    run: Path, pair: NetworkPair, data: str, *, json_file: Path | None = None, **options: Any
) -> NetworkPair:
    """Search λ of a loaded run, write and print the result, and return the pair with the λ that is kept."""
    from onespike.runs.searching import search_run

    def report(trial: Trial, done: int, total: int) -> None:
        value = "given up early" if trial.value is None else f"{trial.value:.4g}"
        cost = "" if trial.energy is None else f", energy {trial.energy:.3f}"
        output.note(f"trial {done}/{total}: λ = {trial.scale:.4f}, {value}{cost} ({trial.seconds:.1f} s)")

    result, record, pair = search_run(run, pair, data, report=report, progress=progress, **options)
    output.figures(json_file, record)
    _show(run, data, pair.loaded.task.objectives[record["objective"]].title, result, record)
    return pair


def _show(run: Path, data: str, title: str, result: Search, record: dict[str, Any]) -> None:
    """Print the front, the best λ, its cost, and the energy before and after, with a warning if it rises."""
    from onespike.energy.columns import beside, of_what_spikes
    from onespike.energy.profiles import profile
    from onespike.reports.tables import figure
    from onespike.runs.searching import FOLDER

    best, column, spent = result.best, record["energy"], record["spent"]
    analog, before, after, budget = (spent[name] for name in ("analog_share", "before", "after", "budget"))
    cost = ""
    if column is not None:
        cells = []
        for trial in result.front():
            spiking = figure(of_what_spikes(column, trial.energy, analog), 3)
            cells.append((f"{trial.scale:.4f}", f"{trial.value:.4g}", figure(trial.energy, 3), spiking))
        output.rows(("λ", title, f"energy ({column})", "of what spikes"), cells)
        if best.energy is not None:
            cost = f", energy {beside(column, best.energy, analog)} ({column})"
    output.line(
        f"best λ    {best.scale:.4f}: {title} {best.value:.4g}{cost}",
        f"cost      {record['forwards']} forward passes in {record['seconds']:.0f} s; evaluating the whole folder once "
        f"takes {record['full_evaluation_forwards']}",
        f"kept in   {run}; trials in {run / FOLDER}",
    )
    if before is None or after is None:  # neurons whose spikes have no count
        return
    limit = "" if budget is None else f"; the run's budget is {budget:g}"
    output.line(
        f"energy    {before:.3f} → {beside(spent['column'], after, analog)} ({spent['column']}, {profile().name}{limit})"
    )
    if after > 1.05 * (before if budget is None else min(before, budget)):
        wanted = f"{before if budget is None else budget:.3g}"
        words = ("search", str(run), "--data", data, "--budget", wanted, "--energy", spent["column"])
        output.line(
            f"warning   the λ that is kept spends {after / before:.2f} times the energy of before. "
            f"To stay within it, as a ratio of all MACs: {shlex.join(['onespike', *words])}"
        )
