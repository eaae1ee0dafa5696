"""`onespike report`: a run as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import (
    Annotations,
    BatchSize,
    Device,
    HeldOut,
    Limit,
    MaybeData,
    Prices,
    RunFolder,
    given,
    tried,
)
from onespike.cli.progress import progress
from onespike.cli.reported import FOLDER
from onespike.errors import UsageError
from onespike.runtime.atomic import try_folder

if TYPE_CHECKING:
    from onespike.runs import NetworkPair
    from onespike.tasks import Items


@command("onespike report run --data imagenet/val --limit 500")
def report(
    run: RunFolder,
    data: MaybeData = None,
    annotations: Annotations = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder to write; by default RUN/report.", callback=tried(try_folder)
        ),
    ] = None,
    limit: Limit = None,
    held_out: HeldOut = False,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
    profile: Prices = None,
) -> Next:
    """Write a page about a run: one HTML file, Markdown and JSON.

    It shows scores, energy, every site with its distribution, the front of scores against energy, and inputs with both
    networks' predictions. The page needs no network and no other file.
    """
    from onespike import runs
    from onespike.reports.pages import write_report
    from onespike.reports.record import gather

    pair, folder = runs.load_run(run, device=device), out or run / FOLDER
    try_folder(folder)
    items = _images(run, pair, data, annotations, limit, held_out)
    record = gather(run, pair, items, batch_size=batch_size, progress=progress)
    output.line(write_report(folder, [record]))
    if record["evaluation"] is not None:
        output.line()
        output.measured(record["evaluation"], pair.recipe.steps, pair.loaded.published_top1)
        output.tables(folder / "report.csv", folder / "report.tex")
    if data is None:
        return "inspect", run
    return "doctor", run, *given(data=data, annotations=annotations, limit=limit)


def _images(
    run: Path,
    pair: NetworkPair,
    data: str | None,
    annotations: Path | None,
    limit: int | None,
    held_out: bool,
) -> Items | None:
    from onespike.runs.search_run import measurable

    if data is not None:
        return measurable(run, pair, data, annotations, limit, held_out=held_out)
    if annotations is not None:
        raise UsageError("--annotations says what is on the images of --data. Give both.")
    if held_out:
        raise UsageError("--held-out says which images of --data to take. Give both.")
    return None
