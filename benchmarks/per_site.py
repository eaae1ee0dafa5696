"""A step for each site, or each kind of site, against one λ for all at the same energy.

    python benchmarks/per_site.py [MODEL] [--weights FILE] [--calibrate DIR] [--data DIR] [--images 128]

For each λ the network is measured once with λ alone, and then with the steps of the pass `allocate`,
at the energy that λ had: KL to the original network (lower is better) on the same images.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from onespike import preset, runs
from onespike.adapters import load_model
from onespike.runs.search_run import allocate, objective_of, search_images
from onespike.scale_search import Search, Trial

BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default="bundled:cifar10-vit")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--calibrate", default="bundled:cifar10-calibration")
    parser.add_argument("--data", default="bundled:cifar10-test")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--scales", type=float, nargs="+", default=[0.4, 0.25, 0.12])
    parser.add_argument("--energy", default="counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    loaded = load_model(options.model, weights=options.weights)
    pair = runs.convert_network(loaded, runs.choose(options.calibrate, 64), preset("sformer"))
    items, *_ = search_images(pair, options.data, options.images)
    data, kl = pair.loaded.batches(items, BATCH), pair.loaded.task.objectives["kl"]
    measure = objective_of(pair, items, data, kl, options.energy)
    for scale in options.scales:
        single = measure(scale, lambda step, value: False)
        trial = Trial(0, scale, single.value, single.energy, 0.0)
        print(f"λ = {scale:g}: KL {single.value:.4f} at energy {single.energy:.4f}", flush=True)
        for by in ("kind", "site"):
            found = allocate(pair, measure, Search((trial,), trial, False), by, items, BATCH)
            print(
                f"  per {by}: KL {found.value:.4f} at energy {found.energy:.4f} (λ = {found.scale:.3f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
