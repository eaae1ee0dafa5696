"""`onespike ablate`: what each pass of a run is worth."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onespike.ablate import FOLDER, Row, ablate_run
from onespike.cli import show
from onespike.cli.commands import command
from onespike.cli.options import BatchSize, Data, Json, Limit, RunFolder
from onespike.cli.progress import progress
from onespike.files import write_atomically
from onespike.passes import parse_passes


@command(
    "onespike ablate run --data imagenet/val",
    "onespike ablate run --data photos --limit 200 \\\n    --passes nearest,center,allocate --budget 0.25",
    interrupted="finished rows are kept. Run the same command again to go on.",
)
def ablate(
    run: RunFolder,
    data: Data,
    passes: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="The run's passes, or those of `best` without `tune`; see `onespike list passes`.",
        ),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(metavar="RATIO", help="The energy ratio of every row.")
    ] = None,
    energy: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The ratio meant: counts, nonzero or binary.")
    ] = None,
    limit: Limit = None,
    batch_size: BatchSize = 16,
    json_file: Json = None,
) -> None:
    """Measure each pass of a run alone, left out, and all together.

    All rows have the same energy, and are calibrated on the images of the run. Finished rows are kept in the run, so
    that the command can be interrupted and given again.
    """
    names = None if passes is None else parse_passes(passes)
    rows = []
    for row in ablate_run(
        run,
        data,
        passes=names,
        budget=budget,
        energy=energy,
        limit=limit,
        batch_size=batch_size,
        progress=progress,
    ):
        show.note(f"{row.what}: KL {row.figures['kl']:.4f}")
        rows.append(row)
    show.rows(
        ("passes", "top-1 %", "difference", "KL, nats", "counts", "binary"), [_cells(row) for row in rows]
    )
    original = rows[0].figures["ann"]["top1"]
    if original is not None:
        show.line(f"original top-1 {original:.2f} %; the difference has its paired standard error")
    show.line(f"kept in {run / FOLDER}")
    if json_file is not None:
        write_atomically(json_file, json.dumps([row.to_dict() for row in rows], indent=1) + "\n")


def _cells(row: Row) -> tuple[str, ...]:
    found = row.figures
    top1, difference = found["snn"]["top1"], found["difference"]
    return (
        row.what,
        "–" if top1 is None else f"{top1:.2f}",
        "–" if difference is None else f"{difference:+.2f} ± {found['standard_error']:.2f}",
        f"{found['kl']:.4f}",
        f"{found['energy']['counts']:.3f}",
        f"{found['energy']['binary']:.3f}",
    )
