"""`onespike report`: a run as a page, or several runs side by side; and the stored report, read again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Word, words
from onespike.cli.progress import progress
from onespike.errors import UsageError, unknown
from onespike.runtime.atomic import try_folder
from onespike.runtime.validated import read_sealed, understood

if TYPE_CHECKING:
    from onespike.runs import NetworkPair
    from onespike.tasks import Items

FOLDER, RECORD = "report", "report.json"
AGAIN = "Make the reports again: onespike report RUN --data DIR"


@command(
    "onespike report run --data imagenet/val --limit 500",
    "onespike report run-a run-b --data imagenet/val --out compared",
    out=Word("DIR", "By default RUN/report, or onespike-compare for several.", attempt=try_folder),
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
    from onespike.energy.columns import COLUMNS
    from onespike.reports.record import gather
    from onespike.runs import evaluate_pair, load
    from onespike.runs.searching import measurable

    run, several = runs[0], len(runs) > 1
    if several and energy is not None and energy not in COLUMNS:
        raise unknown("energy column", energy, COLUMNS)
    if energy is not None and not several:
        raise UsageError("--energy draws several runs, and there is one. Leave it out.")
    wanted = {"--annotations": annotations, "--held-out": held_out, "--profile": profile}
    for option, value in wanted.items() if data is None else ():
        if value:
            raise UsageError(f"{option} is for what is measured, and nothing is. Give --data DIR, too.")

    def items(run: Path, pair: NetworkPair) -> Items:
        return measurable(run, pair, str(data), annotations, limit, held_out=held_out)

    if not several:
        pair = load(run, device=device)
        folder = out or run / FOLDER
        try_folder(folder)
        report_pair(run, pair, None if data is None else items(run, pair), folder, batch_size)
        if data is None:
            return "inspect", run
        return "doctor", run, *words(data=data, annotations=annotations, limit=limit)
    if data is None:
        records = [{**reported(each), "run": str(each)} for each in runs]
    else:
        pairs = {each: load(each, device=device) for each in runs}
        task = pairs[run].loaded.task.name
        for each, pair in pairs.items():  # before data of one task is read as data of another
            if (other := pair.loaded.task.name) != task:
                tasks = f"the task of {run} is {task}, that of {each} is {other}"
                raise UsageError(f"report: {tasks}. Compare runs of one task at a time.")
        records = []
        for each in runs:
            pair = pairs[each]
            result = evaluate_pair(pair, items(each, pair), batch_size=batch_size, progress=progress)
            records.append({**gather(each, pair, None), "evaluation": result.to_dict()})
    _compare(list(map(str, runs)), records, out or Path("onespike-compare"), energy)
    return "inspect", run


def report_pair(run: Path, pair: NetworkPair, items: Items | None, folder: Path, batch_size: int) -> None:
    """Measure a run, write its pages and print its figures."""
    from onespike.cli import show
    from onespike.reports.pages import write_report
    from onespike.reports.record import gather

    record = gather(run, pair, items, batch_size=batch_size, progress=progress)
    output.line(write_report(folder, [record]))
    if record["evaluation"] is not None:
        output.line()
        show.measured(record["evaluation"], pair.recipe.steps, pair.loaded.published_top1)
        output.tables(folder / "report.csv", folder / "report.tex")


def _compare(names: list[str], records: list[dict[str, Any]], out: Path, energy: str | None) -> None:
    from onespike.reports.pages import common_column, write_report
    from onespike.reports.tables import comparison, figure
    from onespike.tasks import compared

    with understood(", ".join(names), AGAIN):
        output.line(write_report(out, records, energy))
        evaluations, column = [record["evaluation"] for record in records], energy or common_column(records)
        more = {f"energy ({column})": [figure(one["energy"][column], 3) for one in evaluations]}
        output.rows(*comparison("run", names, compared(evaluations), more), left=(0,))
    output.tables(out / "compare.csv", out / "compare.tex")


@dataclass(frozen=True)
class _Evaluation:
    task: str
    ann: dict[str, Any]
    snn: dict[str, Any]
    energy: dict[str, float | None]
    analog_share: float
    images: int
    profile: str
    seconds: dict[str, float]


@dataclass(frozen=True)
class _Report:
    """The schema of a report, as far as it is read again."""

    version: int
    evaluation: _Evaluation | None


def reported(run: Path) -> dict[str, Any]:
    """Return the measured report in a run."""
    from onespike.reports.record import VERSION
    from onespike.runs import storage

    storage.load(run)  # a damaged run is named before its report is trusted
    record = read_sealed(_Report, run / FOLDER / RECORD, AGAIN)
    if record is None or record["evaluation"] is None or record["version"] != VERSION:
        raise UsageError(f"{run}: no measured report. Give --data DIR, or: onespike report {run} --data DIR")
    return record
