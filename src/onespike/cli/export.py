"""`onespike export`: a run as a file for another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Word
from onespike.runtime.atomic import try_new_folder

if TYPE_CHECKING:
    from onespike.deploy.exports import Exported


@command(
    "onespike export run --format onnx --out network.onnx --data imagenet/val",
    "onespike export run --format onnx --integer --out network-int8.onnx",
    "onespike export run --format pt2 --out network.pt2",
    out=Word("FILE", "The new file (or folder).", None, try_new_folder),
    data=Word("DIR", "Inputs to compare on; the run's calibration inputs if not given."),
    limit=Word("N", "How many of them."),
)
def export(
    run: Path,
    *,
    format: str,
    out: Path,
    data: str | None = None,
    limit: int = 16,
    integer: bool = False,
    batch_size: int = 4,
) -> Next:
    """Write a run for another runtime, and compare every spike there.

    The file is read back by its runtime, run on real inputs, and compared with the network: spikes of
    every site and answers. Differences are printed and written beside it, as FILE.verified.json.
    """
    from onespike import runs
    from onespike.deploy.exports.base import prepare
    from onespike.runs.forms import export_pair

    form = True if integer else None  # some formats are always on integers
    prepare(format, form, out)  # an impossible format is refused before anything is loaded
    pair = runs.load(run)
    exported(export_pair(pair, format, out, data=data, limit=limit, integer=form, batch_size=batch_size))
    return ("evaluate", run, "--data", data, "--format", "all") if data else ("list", "formats")


def exported(done: Exported) -> None:
    """Print what was written, and the result of the comparison."""
    from onespike.deploy.exports.base import report_of

    compared, times, indent = done.comparison, done.milliseconds, " " * 14
    origins = f", which go back to {compared.origins}" if compared.differ else ""
    output.line(
        f"written to     {done.file} ({done.bytes / 1e6:.2f} MB, {done.format}, {done.form} form)",
        f"run by         {done.runtime}, on {compared.inputs} inputs",
        f"spike counts   {compared.counts} compared, {compared.differ} differ{origins}",
    )
    for site, (counts, differ, largest) in list(compared.differing.items())[:5]:
        output.line(f"{indent} {site}: {differ} of {counts}, by at most {largest}")
    if len(compared.differing) > 5:
        output.line(f"{indent} and at {len(compared.differing) - 5} more sites: see {report_of(done.file)}")
    output.line(
        f"answers        {compared.answers_differ} of {compared.inputs} differ; outputs differ by at most "
        f"{compared.output_difference:.2g} of {compared.output_largest:.3g}",
        f"milliseconds   {times['file']:.1f} for a batch of {done.batch} there, {times['onespike']:.1f} here",
        *(f"note: {note}" for note in done.notes),
    )
