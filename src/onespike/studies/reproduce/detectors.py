"""The paper's table of detection and segmentation: boxes and masks of the original and of the spiking network."""

from __future__ import annotations

from typing import Any

from onespike.energy.columns import PAPER, searchable
from onespike.evaluation.side_by_side import evaluate
from onespike.recipe import Recipe, preset
from onespike.studies.reproduce import paper
from onespike.studies.reproduce.bench import SPREAD, Bench, spell
from onespike.studies.reproduce.draw import bars
from onespike.studies.reproduce.study import Row, study
from onespike.tasks.detection import SHAPES

FIGURES = ("AP", "AP50")


def measure(bench: Bench, recipe: Recipe) -> dict[str, Any]:
    """Measure AP and AP50 of both networks and the energy under a recipe, on the test images."""
    return bench.repeated("detection " + spell(recipe), lambda: _measure(bench, recipe), "mask AP", "box AP")


def _measure(bench: Bench, recipe: Recipe) -> dict[str, Any]:
    found = evaluate(
        bench.ann,
        bench.converted(recipe),
        bench.labeled(bench.test),
        bench.loaded.task.metric(bench.test),
        progress=bench.progress(f"λ={recipe.scale:.3g}", bench.steps(bench.test)),
    ).to_dict()
    figures = {
        f"{prefix}{shape} {figure}": found[network][kind][figure]
        for network, prefix in (("ann", "ann "), ("snn", ""))
        for kind, shape in SHAPES.items()
        if kind in found[network]
        for figure in FIGURES
    }
    return {
        **figures,
        **{column: found["energy"][column] for column in searchable()},
    }


@study(
    "table-detection",
    "Boxes and masks: AP and AP50 of the original and the spiking network, T = 1",
    bars("network", "box AP50", "mask AP50"),
    "The paper's rows are COCO-2017; it prints no AP of its original network there, no energy, and masks in the text "
    "alone. Ours are of another network on other images, so what compares is the loss from `ann` to spiking. λ is "
    "searched by AP (of masks, where there are such) on images of its own.",
    network="scenes",
    task="detection",
    paper_data="COCO-2017",
    essential=(
        "network", "scale", "ann box AP", "box AP", "ann mask AP", "mask AP", PAPER, "paper box AP",
        "paper box AP50", "paper mask AP", *SPREAD,
    ),
)  # fmt: skip
def detection(bench: Bench) -> list[Row]:
    recipe = preset("sformer")
    searched = bench.searched(recipe, objective="ap")["scale"]
    rows: list[Row] = []
    for title, scale in (("λ searched", searched), ("λ of the preset", recipe.scale), ("λ = 1", 1.0)):
        measured = measure(bench, recipe.replace(scale=scale))
        rows.append({"network": f"{bench.loaded.spec}, {title}", "T": 1, "scale": scale, **measured})
    for name, (steps, boxes, masks) in paper.DETECTION.items():
        row: Row = {"network": name, "T": steps}
        for shape, figures in (("box", boxes), ("mask", masks)):
            row |= {f"paper {shape} {k}": v for k, v in zip(FIGURES, figures, strict=True)}
        rows.append(row)
    return rows
