"""`onespike ablate`: the effect of each pass of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Annotations, BatchSize, Data, Device, Json, Limit, RunFolder, given
from onespike.cli.progress import progress

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
        float | None,
        typer.Option(metavar="RATIO", help="The energy ratio of every row, of all MACs of the original."),
    ] = None,
    energy: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The energy column of the ratio: see `onespike list columns`."),
    ] = None,
    limit: Limit = None,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
    json_file: Json = None,
) -> Next:
    """Measure each pass of a run alone, left out, and all together.

    All rows have the same energy, and are calibrated on the images of the run. Finished rows are kept in the run, so
    that the command can be interrupted and repeated.
    """
    from onespike.energy.columns import OF_ALL_MACS, holdable
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
        device=device,
        progress=progress,
    ):
        output.note(f"{row.what}: " + ", ".join(_cells(row, [])[1:]))
        rows.append(row)
    output.figures(json_file, [row.to_dict() for row in rows])
    shown, first = holdable(), rows[0].headline
    divergence = ("KL, nats",) if "kl" in rows[0].figures else ()
    output.rows(
        ("passes", first.title, "difference", *divergence, *shown), [_cells(row, shown) for row in rows]
    )
    if first.original is not None:
        paired = "" if first.error is None else "; the difference has its paired standard error"
        output.line(f"original: {first.title} {first.original:.2f}{paired}")
    first_figures = rows[0].figures
    prices = first_figures.get("profile", DEFAULT)
    output.line(
        f"energy {OF_ALL_MACS}, {100 * (1 - first_figures['analog_share']):.1f} % of which spike, at the prices of {prices}"
    )
    output.line(f"kept in {run / FOLDER}")
    return "report", run, *given(data=data, annotations=annotations, limit=limit)


def _cells(row: Row, columns: list[str]) -> tuple[str, ...]:
    from onespike.reports.tables import figure

    found, headline = row.figures, row.headline
    error = "" if headline.error is None else f" ± {headline.error:.2f}"
    return (
        row.what,
        figure(headline.spiking),
        "–" if headline.difference is None else f"{headline.difference:+.2f}{error}".replace("-", "−"),
        *([f"{found['kl']:.4f}"] if "kl" in found else []),
        *(figure(found["energy"].get(column), 3) for column in columns),
    )
