"""Peak memory and time of the passes, beside a forward of the original network on a batch of the same size.

    python benchmarks/pass_cost.py --network vit-tiny [--assets ../shared/assets] [--threads 2]

Each measurement is a process of its own, so that its peak is its own. `loaded` is what the process holds before: Python,
libraries, weights and one batch; `calibrated` is its peak after the first thresholds, taken image by image from 64
images. The passes are those of the preset `best` without `tune`, on 128 calibration images.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import records
from records import Column


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def measure(options: argparse.Namespace) -> dict[str, float]:
    import torch
    from front import NETWORKS

    from onespike import calibrate, preset, runs
    from onespike.passes import improve
    from onespike.presets import FAST
    from onespike.runtime.batches import take_first
    from onespike.tasks import limit

    torch.set_num_threads(options.threads)
    assets, subject = Path(options.assets), NETWORKS[options.network]
    loaded = subject.load(assets)
    items = limit(runs.choose(subject.calibration(assets), None), 128)
    inputs = runs.Inputs(items, loaded)
    first, before = inputs[0], peak()
    started = time.perf_counter()
    if options.part == "forward":
        with torch.inference_mode():
            loaded.model.eval()(first)
    else:
        recipe = preset("best", passes=FAST)
        single = (image for part in take_first(inputs, 64) for image in part.split(1))
        thresholds = calibrate(loaded.model, single, recipe)
        calibrated, started = peak(), time.perf_counter()
        improve(loaded.model, inputs, thresholds, recipe)
        return {"loaded MiB": before, "calibrated MiB": calibrated, **result(started)}
    return {"loaded MiB": before, **result(started)}


def result(started: float) -> dict[str, float]:
    return {"peak MiB": peak(), "seconds": time.perf_counter() - started}


def main() -> None:
    beside = Path(__file__).resolve().parents[2] / "shared" / "assets"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--network", default="vit-tiny")
    parser.add_argument("--assets", default=str(beside))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--part", choices=("forward", "passes"))
    records.option(parser)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(measure(options)))
        return
    found = {}
    for part in ("forward", "passes"):
        run = subprocess.run(
            [sys.executable, *sys.argv, "--part", part], check=True, stdout=subprocess.PIPE, text=True
        )
        found[part] = json.loads(run.stdout)
        print(part, ", ".join(f"{name} {value:.1f}" for name, value in found[part].items()), flush=True)
    if options.record:
        titles = {"forward": "one forward of the original", "passes": "all passes but `tune`"}
        cells = [
            {
                "what": titles[part],
                "seconds": of["seconds"],
                "loaded": of["loaded MiB"],
                "peak": of["peak MiB"],
            }
            for part, of in found.items()
        ]
        columns = {
            "what": Column("what"), "seconds": Column("clock", "s", ".0f"),
            "loaded": Column("held before", "MiB", ".0f"), "peak": Column("peak of the process", "MiB", ".0f"),
        }  # fmt: skip
        about = f"{options.network}, 128 calibration images, {options.threads} threads."
        records.write(options.record, cells, about=about, columns=columns, code=["src/onespike/passes"])
    print(f"passes: {found['passes']['peak MiB'] / found['forward']['peak MiB']:.2f} × the peak of a forward")


if __name__ == "__main__":
    main()
