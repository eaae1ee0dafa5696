"""`onespike export`: a run as a file for another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Word
from onespike.errors import UsageError
from onespike.runtime.atomic import try_new_folder

if TYPE_CHECKING:
    from onespike.deploy.exports import Exported


@command(
    "onespike export run --format onnx --out network.onnx --data imagenet/val",
    "onespike export run --format onnx --integer --out network-int8.onnx",
    "onespike export run --format integers --golden 16 --out network",
    "onespike export run --verify network.onnx --data imagenet/val",
    "onespike export --verify network",
    out=Word("FILE", "The new file (or folder).", None, try_new_folder),
    data=Word("DIR", "Inputs to compare on; the run's calibration inputs if not given."),
    limit=Word("N", "How many of them."),
)
def export(
    run: Path | None = None,
    *,
    format: str | None = None,
    out: Path | None = None,
    data: str | None = None,
    limit: int = 16,
    integer: bool = False,
    golden: int | None = None,
    verify: Path | None = None,
    batch_size: int = 4,
) -> Next:
    """Write a run for another runtime, and compare every spike there.

    The file is read back by its runtime, run on real inputs, and compared with the network: spikes of
    every site and answers. Differences are printed and written beside it, as FILE.verified.json. With --verify an
    existing file is compared again: with a run, or without one by the golden spikes that it holds.
    """
    from onespike import runs
    from onespike.deploy.exports.base import prepare
    from onespike.runs.forms import export_pair, verify_pair

    each: Any = {"data": data, "limit": limit, "batch_size": batch_size}
    if verify is not None:
        if format is not None or out is not None:
            raise UsageError("--verify checks a file that exists. Leave --format and --out out.")
        exported(verify_pair(None if run is None else runs.load(run), verify, **each))
        return "list", "formats"
    if run is None or format is None or out is None:
        raise UsageError(
            "what to write is missing. Give RUN, --format NAME and --out FILE, or --verify FILE."
        )
    form = True if integer else None  # some formats are always on integers
    prepare(format, form, out)  # an impossible format is refused before anything is loaded
    pair = runs.load(run)
    exported(export_pair(pair, format, out, integer=form, golden=golden, **each))
    return ("evaluate", run, "--data", data, "--format", "all") if data else ("list", "formats")


def exported(done: Exported) -> None:
    """Print what was written, and the result of the comparison."""
    from onespike.deploy.exports.base import report_of

    compared, times, indent = done.comparison, done.milliseconds, " " * 14
    origins = f", which go back to {compared.origins}" if compared.differ else ""
    title = "written to" if times else "verified"
    output.line(
        f"{title:<15}{done.file} ({done.bytes / 1e6:.2f} MB, {done.format}, {done.form} form)",
        f"run by         {done.runtime}, on {compared.inputs} inputs",
        f"spike counts   {compared.counts} compared, {compared.differ} differ{origins}"
        if compared.counts
        else "spike counts   not compared: they have no names in this file",
    )
    for site, (counts, differ, largest) in list(compared.differing.items())[:5]:
        output.line(f"{indent} {site}: {differ} of {counts}, by at most {largest}")
    if len(compared.differing) > 5:
        output.line(f"{indent} and at {len(compared.differing) - 5} more sites: see {report_of(done.file)}")
    output.line(
        f"answers        {compared.answers_differ} of {compared.inputs} differ; outputs differ by at most "
        f"{compared.output_difference:.2g} of {compared.output_largest:.3g}",
        *(f"note: {note}" for note in done.notes),
    )
    if times:
        output.line(
            f"milliseconds   {times['file']:.1f} for a batch of {done.batch} there, {times['onespike']:.1f} here"
        )
