"""`onespike export`: a run as a file for another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import BatchSize, RunFolder, tried
from onespike.runtime.atomic import try_new_folder

if TYPE_CHECKING:
    from onespike.deploy.exports import Exported


@command(
    "onespike export run --format onnx --out network.onnx --verify imagenet/val",
    "onespike export run --format onnx --integer --out network-int8.onnx",
    "onespike export run --format pt2 --out network.pt2",
)
def export(
    run: RunFolder,
    format: Annotated[str, typer.Option(metavar="NAME", help="One of `onespike list formats`.")],
    out: Annotated[
        Path,
        typer.Option(metavar="FILE", help="The new file (or folder).", callback=tried(try_new_folder)),
    ],
    verify: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Inputs to compare on; the run's calibration inputs if not given."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="How many of them.")] = 16,
    integer: Annotated[
        bool | None,
        typer.Option(
            "--integer/--float", help="Spikes times 8-bit weights, or float32 throughout.", show_default=False
        ),
    ] = None,
    batch_size: BatchSize = 4,
) -> Next:
    """Write a run for another runtime, and compare every spike there.

    The file is read back by its runtime, run on real inputs, and compared with the network: spikes of
    every site and answers. Differences are printed and written beside it, as FILE.verified.json.
    """
    from onespike.runs.export_run import export_run

    done = export_run(run, format, out, data=verify, limit=limit, integer=integer, batch_size=batch_size)
    shown(done)
    return ("benchmark", run, "--data", verify) if verify else ("list", "formats")


def shown(done: Exported) -> None:
    """Print what was written, and the result of the comparison."""
    from onespike.deploy.exports.base import report_of

    found = done.comparison
    output.line(f"written to     {done.file} ({done.bytes / 1e6:.2f} MB, {done.format}, {done.form} form)")
    output.line(f"run by         {done.runtime}, on {found.inputs} inputs")
    from_ = f", which go back to {found.origins}" if found.differ else ""
    output.line(f"spike counts   {found.counts} compared, {found.differ} differ{from_}")
    for site, (compared, differ, largest) in list(found.sites.items())[:5]:
        output.line(f"               {site}: {differ} of {compared}, by at most {largest}")
    if len(found.sites) > 5:
        output.line(f"               and at {len(found.sites) - 5} more sites: see {report_of(done.file)}")
    output.line(
        f"answers        {found.answers_differ} of {found.inputs} differ; outputs differ by at most "
        f"{found.output_difference:.2g} of {found.output_largest:.3g}"
    )
    times = done.milliseconds
    output.line(
        f"milliseconds   {times['file']:.1f} for a batch of {done.batch} there, {times['onespike']:.1f} here"
    )
    for note in done.notes:
        output.line(f"note: {note}")
