"""`onespike compare`: several runs on one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from onespike.cli.commands import Next, command
from onespike.cli.options import Annotations, BatchSize, Device, Limit, MaybeData, tried
from onespike.cli.progress import progress
from onespike.cli.report import FOLDER, RECORD, write_pages
from onespike.errors import UsageError
from onespike.runtime.atomic import try_folder
from onespike.runtime.validated import read_sealed, understood

AGAIN = "Make the reports again: onespike report RUN --data DIR"


@dataclass(frozen=True)
class _Network:
    spec: str


@dataclass(frozen=True)
class _Evaluation:
    task: str
    ann: dict[str, Any]
    snn: dict[str, Any]
    energy: dict[str, float | None]


@dataclass(frozen=True)
class _Report:
    """The schema of a report, as far as `compare` reads it."""

    version: int
    network: _Network
    recipe: dict[str, Any]
    evaluation: _Evaluation | None


@command("onespike compare run-a run-b --data imagenet/val --out compared")
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Two runs or more.")],
    data: MaybeData = None,
    annotations: Annotations = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to write.", callback=tried(try_folder))
    ] = Path("onespike-compare"),
    limit: Limit = None,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
) -> Next:
    """Write one page about several runs.

    With --data each run is measured on the same images; without it, the figures are those of each run's report.
    """
    from onespike.report import html, markdown
    from onespike.report.record import VERSION

    if len(runs) < 2:
        raise UsageError("compare needs two runs or more. Use `onespike report` for one.")
    records = [_record(run, data, annotations, limit, batch_size, device) for run in runs]
    with understood(", ".join(map(str, runs)), AGAIN):
        page, text = html.compare(records), markdown.compare_markdown(records, html.differences(records))
    write_pages(out, "compare", page, text, {"version": VERSION, "runs": records})
    return "inspect", runs[0]


def _record(
    run: Path, data: str | None, annotations: Path | None, limit: int | None, batch_size: int, device: str
) -> dict[str, Any]:
    from onespike import runs
    from onespike.report.record import VERSION, gather
    from onespike.runs import storage

    if data is not None:
        pair = runs.load_run(run, device=device)
        record = gather(run, pair, None)
        items = runs.choose_labeled(pair.loaded, data, annotations, limit)
        result = runs.evaluate_pair(pair, items, batch_size=batch_size, progress=progress)
        return {**record, "evaluation": result.to_dict()}
    storage.load(run)  # a damaged run is named before its report is believed
    file = run / FOLDER / RECORD
    found = read_sealed(_Report, file, AGAIN)
    if found is None or found["evaluation"] is None or found["version"] != VERSION:
        raise UsageError(
            f"{run}: it has no measured report. Give --data DIR, or run: onespike report {run} --data DIR"
        )
    return {**found, "run": str(run)}
