"""`onespike export`: a run as a file for another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onespike.cli.commands import Next, command
from onespike.cli.options import Word
from onespike.errors import UsageError
from onespike.runtime.atomic import try_new_folder


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
    from onespike.cli import show
    from onespike.deploy.exports.base import prepare
    from onespike.runs.forms import export_pair, verify_pair

    each: Any = {"data": data, "limit": limit, "batch_size": batch_size}
    if verify is not None:
        if format is not None or out is not None:
            raise UsageError("--verify checks a file that exists. Leave --format and --out out.")
        show.exported(verify_pair(None if run is None else runs.load(run), verify, **each))
        return "list", "formats"
    if run is None or format is None or out is None:
        raise UsageError(
            "what to write is missing. Give RUN, --format NAME and --out FILE, or --verify FILE."
        )
    form = True if integer else None  # some formats are always on integers
    prepare(format, form, out)  # an impossible format is refused before anything is loaded
    pair = runs.load(run)
    show.exported(export_pair(pair, format, out, integer=form, golden=golden, **each))
    return ("evaluate", run, "--data", data, "--format", "all") if data else ("list", "formats")
