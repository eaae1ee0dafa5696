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
    from onespike.cli import show
    from onespike.studies.demo import DEMOS, run_demo

    if task not in DEMOS:
        raise unknown("demo", task, DEMOS)
    pair, result, files = run_demo(task, out, progress)
    show.evaluated(pair, result)
    output.line("", f"written to {out}: {', '.join(files)}")
    return "convert", pair.loaded.spec, "--calibrate", pair.data["source"], "--out", unused(out / "run")
