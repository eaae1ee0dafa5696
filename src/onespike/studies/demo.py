"""The main workflow on a bundled network: convert, evaluate, sweep λ or show its answers, draw."""

from __future__ import annotations

from pathlib import Path

from onespike import runs
from onespike.adapters import load_model
from onespike.conversion.network import set_scale_
from onespike.evaluation.side_by_side import Evaluation
from onespike.recipe import preset
from onespike.reports import plots
from onespike.runs import NetworkPair, Progress
from onespike.runtime.atomic import write_atomically
from onespike.runtime.provenance import stamped

DEMOS = {
    "classification": ("bundled:cifar10-vit", "bundled:cifar10", None, 100, preset("sformer").scale),
    "segmentation": ("bundled:scenes", "bundled:scenes", 48, 20, 0.25),
}
"""Network, images, how many of them calibrate, batch size, and λ: the best of a search on other images."""
SCALES = (1.0, 0.5, 0.35, 0.25, 0.15, 0.08)
SWEEP_IMAGES = 300


def run_demo(task: str, out: Path, progress: Progress) -> tuple[NetworkPair, Evaluation, list[str]]:
    """Convert a bundled network, and write `demo.json` and two figures into a folder."""
    spec, images, count, batch_size, scale = DEMOS[task]
    recipe, calibration = preset("sformer", scale=scale), runs.choose(f"{images}-calibration", count)
    pair = runs.convert_network(load_model(spec), calibration, recipe, progress=progress)
    items = runs.choose_labeled(pair.loaded, f"{images}-test")
    metric = pair.loaded.task.metric(items)
    result = runs.evaluate_pair(pair, items, metric=metric, batch_size=batch_size, progress=progress)
    record = result.to_dict()
    if task == "segmentation":
        figures = {"predictions.png": pair.loaded.task.picture(items, metric)}
    else:
        rows, few = [], runs.choose_labeled(pair.loaded, f"{images}-test", count=SWEEP_IMAGES)
        for value in SCALES:
            set_scale_(pair.snn, value)
            title = f"λ = {value:g}"
            swept = runs.evaluate_pair(
                pair, few, batch_size=batch_size, progress=progress, title=title
            ).to_dict()
            headline = pair.loaded.task.headline(swept)
            rows.append({"scale": value, "score": headline.spiking, "kl": swept["kl"], **swept["energy"]})
        set_scale_(pair.snn, scale)
        figures = {"overview.png": plots.saved(plots.overview(record["energy"], rows, headline, scale))}
        record |= {"sweep": rows, "sweep_images": SWEEP_IMAGES}
    figures["sites.png"] = plots.saved(plots.sites(result.ledger))
    files: dict[str, str | bytes] = {"demo.json": stamped(record), **figures}
    for name, contents in files.items():
        write_atomically(out / name, contents)
    return pair, result, list(files)
