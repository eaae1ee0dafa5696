"""`onespike ablate`: the effect of each pass of a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Annotations, BatchSize, Data, Json, Limit, RunFolder, given
from onespike.cli.progress import progress
from onespike.runtime.atomic import write_atomically

if TYPE_CHECKING:
    from onespike.studies.ablate import Row


@command(
    "onespike ablate run --data imagenet/val",
    "onespike ablate run --data photos --limit 200 \\\n    --passes nearest,center,allocate --budget 0.25",
    interrupted="finished rows are kept. Run the same command again to go on.",
)
def ablate(
    run: RunFolder,
    data: Data,
    annotations: Annotations = None,
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
        str | None,
        typer.Option(metavar="COLUMN", help="The energy column of the ratio: see `onespike list columns`."),
    ] = None,
    limit: Limit = None,
    batch_size: BatchSize = 16,
    json_file: Json = None,
) -> Next:
    """Measure each pass of a run alone, left out, and all together.

    All rows have the same energy, and are calibrated on the images of the run. Finished rows are kept in the run, so
    that the command can be interrupted and repeated.
    """
    from onespike.energy.columns import holdable
    from onespike.energy.profiles import DEFAULT
    from onespike.passes import parse_passes
    from onespike.studies.ablate import FOLDER, ablate_run

    names = None if passes is None else parse_passes(passes)
    rows = []
    for row in ablate_run(
        run,
        data,
        annotations=annotations,
        passes=names,
        budget=budget,
        energy=energy,
        limit=limit,
        batch_size=batch_size,
        progress=progress,
    ):
        output.note(f"{row.what}: " + ", ".join(_cells(row, [])[1:]))
        rows.append(row)
    if json_file is not None:
        write_atomically(json_file, json.dumps([row.to_dict() for row in rows], indent=1) + "\n")
    shown, first = holdable(), rows[0].headline
    divergence = ("KL, nats",) if "kl" in rows[0].figures else ()
    output.rows(
        ("passes", first.title, "difference", *divergence, *shown), [_cells(row, shown) for row in rows]
    )
    if first.original is not None:
        paired = "" if first.error is None else "; the difference has its paired standard error"
        output.line(f"original: {first.title} {first.original:.2f}{paired}")
    output.line(f"energy at the prices of {rows[0].figures.get('profile', DEFAULT)}")
    output.line(f"kept in {run / FOLDER}")
    return "report", run, *given(data=data, annotations=annotations, limit=limit)


def _cells(row: Row, columns: list[str]) -> tuple[str, ...]:
    from onespike.report.markdown import figure

    found, headline = row.figures, row.headline
    error = "" if headline.error is None else f" ± {headline.error:.2f}"
    return (
        row.what,
        figure(headline.spiking),
        "–" if headline.difference is None else f"{headline.difference:+.2f}{error}".replace("-", "−"),
        *([f"{found['kl']:.4f}"] if "kl" in found else []),
        *(figure(found["energy"].get(column), 3) for column in columns),
    )
