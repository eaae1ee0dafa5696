"""The main workflow on the bundled network: convert, evaluate, sweep λ, draw."""

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

NETWORK, CALIBRATION, TEST = "bundled:cifar10-vit", "bundled:cifar10-calibration", "bundled:cifar10-test"
DETECTOR, SCENES = "bundled:scenes", "bundled:scenes-test"
SCENE_CALIBRATION = "bundled:scenes-calibration"
DEMO_SCALES = (1.0, 0.5, 0.35, 0.25, 0.15, 0.08)
SWEEP_IMAGES = 300
SCENE_IMAGES, SCENE_SCALE = 48, 0.25
"""The scenes that calibrate the detector, and the best λ of a search on the others."""


def run_demo(out: Path, progress: Progress) -> tuple[NetworkPair, Evaluation, list[str]]:
    """Convert the bundled network and write `demo.json` and two figures into a folder."""
    recipe = preset("sformer")
    pair = runs.convert_network(
        load_model(NETWORK), runs.choose(CALIBRATION, None), recipe, batch_size=64, progress=progress
    )
    result = runs.evaluate_pair(pair, runs.choose(TEST, None), batch_size=100, progress=progress)
    rows = []
    for scale in DEMO_SCALES:
        set_scale_(pair.snn, scale)
        swept = runs.evaluate_pair(
            pair, runs.choose(TEST, SWEEP_IMAGES), batch_size=100, progress=progress, title=f"λ = {scale:g}"
        ).to_dict()
        headline = pair.loaded.task.headline(swept)
        rows.append({"scale": scale, "score": headline.spiking, "kl": swept["kl"], **swept["energy"]})
    set_scale_(pair.snn, recipe.scale)
    record = result.to_dict()
    overview = plots.overview(record["energy"], rows, headline, recipe.scale)
    files: dict[str, str | bytes] = {
        "demo.json": stamped({**record, "sweep": rows, "sweep_images": SWEEP_IMAGES}),
        "overview.png": plots.png(overview),
        "sites.png": plots.png(plots.sites(result.ledger)),
    }
    return pair, result, _write(out, files)


def run_scenes(out: Path, progress: Progress) -> tuple[NetworkPair, Evaluation, list[str]]:
    """Convert the bundled detector and write `demo.json`, both networks' results, and the sites into a folder."""
    recipe = preset("sformer", scale=SCENE_SCALE)
    pair = runs.convert_network(
        load_model(DETECTOR), runs.choose(SCENE_CALIBRATION, SCENE_IMAGES), recipe, progress=progress
    )
    items = runs.choose_labeled(pair.loaded, SCENES)
    metric = pair.loaded.task.metric(items)
    result = runs.evaluate_pair(pair, items, metric=metric, batch_size=20, progress=progress)
    files: dict[str, str | bytes] = {
        "demo.json": stamped(result.to_dict()),
        "predictions.png": pair.loaded.task.picture(items, metric),
        "sites.png": plots.png(plots.sites(result.ledger)),
    }
    return pair, result, _write(out, files)


DEMOS = {"classification": run_demo, "segmentation": run_scenes}


def _write(out: Path, files: dict[str, str | bytes]) -> list[str]:
    for name, contents in files.items():
        write_atomically(out / name, contents)
    return list(files)
