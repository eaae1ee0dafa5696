"""The paper's search with labels beside the label-free one, on ViT-Tiny/16 with ImageNet weights.

    python benchmarks/search_vit_tiny.py --out results [--images 128] [--threads 1]

The converted network is compiled, which is done once. It is calibrated on 64 images of the calibration folder; both searches take the same images from the rest of
it, and both λ are then measured on every validation image. The networks and images are those of the folder that
ONESPIKE_ASSETS names. What is finished is kept in the folder --out, so that the script can be stopped and started again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from pathlib import Path

import records
import torch
from records import Column, Figure

from onespike import metered, preset, runs, set_scale_
from onespike.adapters import load_model
from onespike.energy.ledger import Ledger
from onespike.runs.searching import search_run
from onespike.runtime.atomic import write_atomically
from onespike.runtime.progress import reporting
from onespike.tasks import Accuracy, batches

SEARCHES = {"top1": 50, "kl": 12}
CALIBRATION_IMAGES, COUNTED_IMAGES, BATCH = 64, 64, 8


class Hits(Accuracy):
    """Remembers for every image whether the converted network was right."""

    def __init__(self) -> None:
        super().__init__()
        self.right: list[int] = []

    def update(self, ann, snn, labels) -> None:
        super().update(ann, snn, labels)
        self.right += (snn.argmax(1) == labels).int().tolist()


def kept(path: Path, measure) -> dict:
    """The result of a part, measured only if an earlier start has not finished it."""
    if not path.exists():
        write_atomically(path, json.dumps(measure(), indent=1) + "\n")
    return json.loads(path.read_text())


def convert(assets: Path, folder: Path) -> None:
    if not folder.exists():
        loaded = load_model("timm:vit_tiny_patch16_224", weights=assets / "vit_tiny_patch16_224.safetensors")
        images = runs.choose(str(assets / "imagenet" / "calibration"), CALIBRATION_IMAGES)
        runs.save(folder, runs.convert_network(loaded, images, preset("sformer")))


def search(assets: Path, out: Path, objective: str, images: int) -> dict:
    run = out / objective
    if not run.exists():
        shutil.copytree(out / "run", run)
    before = time.process_time()
    with reporting(lambda title, total: iter, print):
        _, record, _ = search_run(
            run, runs.load(run), str(assets / "imagenet" / "calibration"), objective=objective, trials=SEARCHES[objective],
            limit=images, batch_size=BATCH, resume=True,
        )  # fmt: skip
    return {**record, "processor_seconds": time.process_time() - before}


def measure(assets: Path, out: Path, scales: dict[str, float]) -> dict:
    """Both λ on every validation image, in one pass; spikes are counted on the first images."""
    pair = runs.load(out / "run")
    items = runs.choose(str(assets / "imagenet" / "val"), None)
    compiled = torch.compile(pair.snn)
    hits, ledgers = {name: Hits() for name in scales}, {name: Ledger() for name in scales}
    with torch.inference_mode():
        for number, (inputs, labels) in enumerate(batches(items, pair.loaded.reading.transform, BATCH)):
            expected = pair.ann(inputs)
            for name, scale in scales.items():
                set_scale_(pair.snn, scale)
                if number < COUNTED_IMAGES // BATCH:
                    with metered(pair.snn, ledgers[name]):
                        pair.snn(inputs)
                hits[name].update(expected, compiled(inputs), labels)
    return {
        name: {**hits[name].compute(), "energy": ledgers[name].ratios(), "right": hits[name].right}
        for name in scales
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=128, help="images that each search uses")
    parser.add_argument("--threads", type=int, default=1)
    records.option(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    beside = Path(__file__).resolve().parents[2] / "shared" / "assets"
    assets, out = Path(os.environ.get("ONESPIKE_ASSETS", beside)), options.out
    if not assets.is_dir():
        parser.error(
            f"{assets} is absent: name the folder with the network and its images in ONESPIKE_ASSETS"
        )
    convert(assets, out / "run")
    costs = {
        name: kept(out / f"{name}.json", lambda name=name: search(assets, out, name, options.images))
        for name in SEARCHES
    }
    scales = {name: cost["best"]["scale"] for name, cost in costs.items()}
    results = kept(out / "val.json", lambda: measure(assets, out, scales))
    for name, result in results.items():
        cost, tried = costs[name], costs[name]["trials"]
        print(
            f"{name}: {len(tried)} trials ({sum(t['value'] is None for t in tried)} given up early), "
            f"{cost['forwards']} forwards, {sum(t['seconds'] for t in tried):.0f} s in trials, "
            f"{cost['processor_seconds']:.0f} s of processor; λ = {cost['best']['scale']:.4f}; "
            f"top-1 {result['snn']['top1']:.1f} % (original {result['ann']['top1']:.1f} %), KL {result['kl']:.3f}, "
            f"counts {result['energy']['counts']:.3f}, binary {result['energy']['binary']:.3f}"
        )
    differences = [a - b for a, b in zip(results["kl"]["right"], results["top1"]["right"], strict=True)]
    error = statistics.stdev(differences) / len(differences) ** 0.5
    if options.record:
        cells = [
            {"search": f"`{name}`", "trials": len(costs[name]["trials"]), "forwards": costs[name]["forwards"],
             "seconds": costs[name]["processor_seconds"], "scale": scales[name], "top1": result["snn"]["top1"],
             "kl": result["kl"], "counts": result["energy"]["counts"], "binary": result["energy"]["binary"]}
            for name, result in results.items()
        ]  # fmt: skip
        cells[-1]["difference"] = Figure(100 * statistics.mean(differences), error=100 * error)
        columns = {
            "search": Column("search"), "trials": Column("trials"), "forwards": Column("forwards of one image", "", ","),
            "seconds": Column("processor time", "s", ".0f"), "scale": Column("λ", "", ".4f"), "top1": Column("top-1", "%", ".1f"),
            "difference": Column("minus `top1`", "", "+.1f"), "kl": Column("KL", "", ".3f"),
            "counts": Column("counts", "", ".3f"), "binary": Column("binary", "", ".3f"),
        }  # fmt: skip
        about = f"ViT-Tiny/16, {CALIBRATION_IMAGES} calibration images, compiled; both searches on the same {options.images} others."
        code = ["src/onespike/scale_search.py"]
        records.write(options.record, cells, about=about, columns=columns, code=code)
    print(
        f"kl − top1: {100 * statistics.mean(differences):+.2f} points, paired standard error {100 * error:.2f}"
    )


if __name__ == "__main__":
    main()
