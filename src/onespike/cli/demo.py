"""`onespike demo`: a bundled network, converted, measured and reported."""

from __future__ import annotations

from pathlib import Path

from onespike.cli.commands import Next, command
from onespike.cli.options import unused
from onespike.cli.progress import progress
from onespike.errors import unknown

DEMOS = {
    "classification": ("bundled:cifar10-vit", "bundled:cifar10", None, 100),
    "segmentation": ("bundled:scenes", "bundled:scenes", 48, 20),
}
"""Network, images, how many of them calibrate, and batch size."""


@command("onespike demo --out my-demo", "onespike demo segmentation")
def demo(task: str = "classification", *, out: Path = Path("onespike-demo")) -> Next:
    """Convert a bundled network and measure it.

    The network is a small vision transformer for CIFAR-10, or a small detector of clothes in composed scenes. Accuracy
    and energy are printed, and a report is written into a folder.
    """
    from onespike import runs
    from onespike.adapters import load_model
    from onespike.cli import output, show
    from onespike.cli.report import report_pair
    from onespike.recipe import preset

    if task not in DEMOS:
        raise unknown("demo", task, DEMOS)
    spec, images, count, batch_size = DEMOS[task]
    calibration = runs.choose(f"{images}-calibration", count)
    pair = runs.convert_network(load_model(spec), calibration, preset("sformer"), progress=progress)
    items = runs.choose_labeled(pair.loaded, f"{images}-test")
    show.network(pair)
    show.sites(pair.snn)
    output.line()
    report_pair(out / "run", pair, items, out, batch_size)
    return "convert", spec, "--calibrate", calibration.source, "--out", unused(out / "run")
