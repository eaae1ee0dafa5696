"""`onespike compare`: several runs on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Annotations, BatchSize, Device, Limit, MaybeData, Prices, tried
from onespike.cli.progress import progress
from onespike.cli.reported import AGAIN, reported
from onespike.errors import UsageError, unknown
from onespike.runtime.atomic import try_folder
from onespike.runtime.validated import understood


@command("onespike compare run-a run-b --data imagenet/val --out compared")
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Two runs or more.")],
    data: MaybeData = None,
    annotations: Annotations = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder to write.", callback=tried(try_folder))
    ] = Path("onespike-compare"),
    energy: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The energy to draw: see `onespike list columns`."),
    ] = None,
    limit: Limit = None,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
    profile: Prices = None,
) -> Next:
    """Write one page about several runs.

    With --data each run is measured on the same images; without it, the figures are those of each run's report.
    """
    from onespike.energy.columns import COLUMNS
    from onespike.reports.pages import common_column, write_report
    from onespike.reports.tables import comparison, figure
    from onespike.tasks import compared

    if energy is not None and energy not in COLUMNS:
        raise unknown("energy column", energy, COLUMNS)
    if len(runs) < 2:
        raise UsageError("compare needs two runs or more. Use `onespike report` for one.")
    if profile is not None and data is None:
        raise UsageError(
            "--profile prices what is measured, and the reports are priced already. Give --data DIR."
        )
    if data is not None:
        _check_tasks(runs)
    records = [_record(run, data, annotations, limit, batch_size, device) for run in runs]
    with understood(", ".join(map(str, runs)), AGAIN):
        output.line(write_report(out, records, energy))
        evaluations, column = [record["evaluation"] for record in records], energy or common_column(records)
        ratios = [figure(evaluation["energy"][column], 3) for evaluation in evaluations]
        output.rows(
            *comparison("run", list(map(str, runs)), compared(evaluations), {f"energy ({column})": ratios}),
            left=1,
        )
    output.tables(out / "compare.csv", out / "compare.tex")
    return "inspect", runs[0]


def _check_tasks(folders: list[Path]) -> None:
    """Refuse runs of different tasks by name, before data of one of them is read as data of the other."""
    from onespike.runs import load_run

    tasks = {folder: load_run(folder).loaded.task.name for folder in folders}
    (first, task), *others = tasks.items()
    for folder, other in others:
        if other != task:
            raise UsageError(
                f"compare: the task of {first} is {task}, that of {folder} is {other}. Compare runs of one task at a time."
            )


def _record(
    run: Path, data: str | None, annotations: Path | None, limit: int | None, batch_size: int, device: str
) -> dict[str, Any]:
    from onespike import runs
    from onespike.reports.record import gather

    if data is not None:
        pair = runs.load_run(run, device=device)
        record = gather(run, pair, None)
        items = runs.choose_labeled(pair.loaded, data, annotations, limit)
        result = runs.evaluate_pair(pair, items, batch_size=batch_size, progress=progress)
        return {**record, "evaluation": result.to_dict()}
    return {**reported(run), "run": str(run)}
