"""`onespike search`: the best λ of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Word, held_out

if TYPE_CHECKING:
    from onespike.runs import NetworkPair
    from onespike.scale_search import Trial


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
    from onespike.cli import show
    from onespike.runs.searching import search_run

    def report(trial: Trial, done: int, total: int) -> None:
        value = "given up early" if trial.value is None else f"{trial.value:.4g}"
        cost = "" if trial.energy is None else f", energy {trial.energy:.3f}"
        output.note(f"trial {done}/{total}: λ = {trial.scale:.4f}, {value}{cost} ({trial.seconds:.1f} s)")

    result, record, pair = search_run(run, pair, data, report=report, progress=output.progress, **options)
    output.figures(json_file, record)
    show.searched(run, data, pair.loaded.task.objectives[record["objective"]].title, result, record)
    return pair
