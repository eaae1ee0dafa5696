"""`onespike demo`: a bundled network, converted and measured."""

from __future__ import annotations

from pathlib import Path

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import unused
from onespike.cli.progress import progress
from onespike.errors import unknown


@command("onespike demo --out my-demo", "onespike demo segmentation")
def demo(task: str = "classification", *, out: Path = Path("onespike-demo")) -> Next:
    """Convert a bundled network and measure it.

    The network is a small vision transformer for CIFAR-10, or a small detector of clothes in composed scenes. Accuracy
    and energy are printed, and figures and JSON are written into a folder.
    """
    from onespike.studies.demo import DEMOS

    if task not in DEMOS:
        raise unknown("demo", task, DEMOS)
    pair, result, files = DEMOS[task](out, progress)
    output.network(pair)
    output.sites(pair.snn, brief=True)
    output.line()
    output.measured(result.to_dict(), result.steps, pair.loaded.published_top1)
    output.line()
    output.line(f"written to {out}: {', '.join(files)}")
    calibration = ("--calibrate", pair.data["source"])
    return "convert", pair.loaded.spec, *calibration, "--out", unused(out / "run")
