"""`onespike report`: a run as a page, or several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Word, words
from onespike.cli.progress import progress
from onespike.cli.reported import AGAIN, FOLDER, reported
from onespike.errors import UsageError, unknown
from onespike.runtime.atomic import try_folder
from onespike.runtime.validated import understood

if TYPE_CHECKING:
    from onespike.runs import NetworkPair
    from onespike.tasks import Items


@command(
    "onespike report run --data imagenet/val --limit 500",
    "onespike report run-a run-b --data imagenet/val --out compared",
    out=Word(
        "DIR",
        "The folder to write; by default RUN/report, or onespike-compare for several.",
        None,
        try_folder,
    ),
)
def report(
    runs: list[Path],
    *,
    data: str | None = None,
    annotations: Path | None = None,
    out: Path | None = None,
    energy: str | None = None,
    limit: int | None = None,
    held_out: bool = False,
    batch_size: int = 16,
    device: str = "cpu",
    profile: str | None = None,
) -> Next:
    """Write a page about a run, or about several runs.

    One HTML file, Markdown and JSON: it shows scores, energy, every site with its distribution, the front of scores against energy, and inputs with both
    networks' predictions. The page needs no network and no other file. Several runs are compared in one table, drawn
    against --energy: on the images of --data, or else by the figures of their own reports.
    """
    if len(runs) > 1:
        return _compare(runs, data, annotations, out, energy, limit, held_out, batch_size, device, profile)
    from onespike import runs as verbs

    if energy is not None:
        raise UsageError("--energy draws several runs, and there is one. Leave it out.")
    run, folder = runs[0], out or runs[0] / FOLDER
    pair = verbs.load(run, device=device)
    try_folder(folder)
    report_pair(run, pair, _items(run, pair, data, annotations, limit, held_out), folder, batch_size)
    if data is None:
        return "inspect", run
    return "doctor", run, *words(data=data, annotations=annotations, limit=limit)


def report_pair(
    run: Path, pair: NetworkPair, items: Items | None, folder: Path, batch_size: int = 16
) -> None:
    """Measure a run, write its pages and print its figures."""
    from onespike.reports.pages import write_report
    from onespike.reports.record import gather

    record = gather(run, pair, items, batch_size=batch_size, progress=progress)
    output.line(write_report(folder, [record]))
    if record["evaluation"] is not None:
        output.line()
        output.measured(record["evaluation"], pair.recipe.steps, pair.loaded.published_top1)
        output.tables(folder / "report.csv", folder / "report.tex")


def _items(
    run: Path,
    pair: NetworkPair,
    data: str | None,
    annotations: Path | None,
    limit: int | None,
    held_out: bool,
) -> Items | None:
    from onespike.runs.searching import measurable

    if data is not None:
        return measurable(run, pair, data, annotations, limit, held_out=held_out)
    if annotations is not None:
        raise UsageError("--annotations says what is on the images of --data. Give both.")
    if held_out:
        raise UsageError("--held-out says which images of --data to take. Give both.")
    return None


def _compare(
    folders: list[Path],
    data: str | None,
    annotations: Path | None,
    out: Path | None,
    energy: str | None,
    limit: int | None,
    held_out: bool,
    batch_size: int,
    device: str,
    profile: str | None,
) -> Next:
    from onespike import runs
    from onespike.energy.columns import COLUMNS
    from onespike.reports.pages import common_column, write_report
    from onespike.reports.record import gather
    from onespike.reports.tables import comparison, figure
    from onespike.tasks import compared

    if energy is not None and energy not in COLUMNS:
        raise unknown("energy column", energy, COLUMNS)
    if profile is not None and data is None:
        raise UsageError(
            "--profile prices what is measured, and the reports are priced already. Give --data DIR."
        )
    out = out or Path("onespike-compare")
    records: list[dict[str, Any]] = []
    if data is None:
        records = [{**reported(run), "run": str(run)} for run in folders]
    else:
        pairs = [runs.load(run, device=device) for run in folders]
        _check_tasks(folders, [pair.loaded.task.name for pair in pairs])
        for run, pair in zip(folders, pairs, strict=True):
            items = _items(run, pair, data, annotations, limit, held_out)
            result = runs.evaluate_pair(pair, items, batch_size=batch_size, progress=progress)  # type: ignore[arg-type]
            records.append({**gather(run, pair, None), "evaluation": result.to_dict()})
    with understood(", ".join(map(str, folders)), AGAIN):
        output.line(write_report(out, records, energy))
        evaluations, column = [record["evaluation"] for record in records], energy or common_column(records)
        ratios = [figure(evaluation["energy"][column], 3) for evaluation in evaluations]
        names = list(map(str, folders))
        output.rows(*comparison("run", names, compared(evaluations), {f"energy ({column})": ratios}), left=1)
    output.tables(out / "compare.csv", out / "compare.tex")
    return "inspect", folders[0]


def _check_tasks(folders: list[Path], tasks: list[str]) -> None:
    """Refuse runs of different tasks by name, before data of one of them is read as data of the other."""
    for folder, task in zip(folders, tasks, strict=True):
        if task != tasks[0]:
            raise UsageError(
                f"report: the task of {folders[0]} is {tasks[0]}, that of {folder} is {task}. "
                "Compare runs of one task at a time."
            )
