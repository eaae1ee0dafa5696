"""`onespike compare`: several runs on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Annotations, BatchSize, Device, Limit, MaybeData, tried
from onespike.cli.progress import progress
from onespike.cli.report import write_pages
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
) -> Next:
    """Write one page about several runs.

    With --data each run is measured on the same images; without it, the figures are those of each run's report.
    """
    from onespike.energy.columns import COLUMNS
    from onespike.report import html, markdown
    from onespike.report.record import VERSION
    from onespike.tasks.intervals import spelled

    if energy is not None and energy not in COLUMNS:
        raise unknown("energy column", energy, COLUMNS)
    if len(runs) < 2:
        raise UsageError("compare needs two runs or more. Use `onespike report` for one.")
    records = [_record(run, data, annotations, limit, batch_size, device) for run in runs]
    with understood(", ".join(map(str, runs)), AGAIN):
        page = html.compare(records, energy)
        text = markdown.compare_markdown(records, html.differences(records))
    write_pages(out, "compare", page, text, {"version": VERSION, "runs": records})
    column, rows = energy or html.common_column(records), html.compared(records, energy)
    output.rows(
        ("run", rows[0]["metric"], "95 %", f"energy ({column})"),
        [
            (
                row["run"],
                markdown.figure(row["value"]),
                "–" if row["bounds"] is None else spelled(row["bounds"]).removeprefix("95 %: "),
                markdown.figure(row["energy"], 3),
            )
            for row in rows
        ],
        left=1,
    )
    return "inspect", runs[0]


def _record(
    run: Path, data: str | None, annotations: Path | None, limit: int | None, batch_size: int, device: str
) -> dict[str, Any]:
    from onespike import runs
    from onespike.report.record import gather

    if data is not None:
        pair = runs.load_run(run, device=device)
        record = gather(run, pair, None)
        items = runs.choose_labeled(pair.loaded, data, annotations, limit)
        result = runs.evaluate_pair(pair, items, batch_size=batch_size, progress=progress)
        return {**record, "evaluation": result.to_dict()}
    return {**reported(run), "run": str(run)}
