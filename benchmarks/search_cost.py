"""What a λ trial costs beside a plain forward of the converted network, and whether memory grows with trials.

    python benchmarks/search_cost.py [--images 100] [--rounds 25] [--trials 40]
    python benchmarks/search_cost.py --model timm:vit_tiny_patch16_224 --weights vit_tiny.safetensors --calibrate DIR --data DIR

The bundled vision transformer, or another network; forwards and trials take turns, and the best of all rounds counts, in processor time.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import records
import torch
from records import Column

from onespike import preset, runs
from onespike.adapters import load_model
from onespike.runs.searching import ScaleObjective
from onespike.tasks import batches

LIMIT = 1.05
KINDS = {"kl": (), "top1": (), "kl with energy": ("counts",)}


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def seconds(work) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--model", default="bundled:cifar10-vit")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--calibrate", default="bundled:cifar10-calibration")
    parser.add_argument("--data", default="bundled:cifar10-test")
    records.option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pair = runs.convert_network(
        load_model(options.model, weights=options.weights),
        runs.choose(options.calibrate, 32),
        preset("sformer"),
    )
    items = runs.choose(options.data, options.images)
    data = list(batches(items, pair.loaded.reading.transform, 16))
    aims = pair.loaded.task.objectives
    objectives = {
        name: ScaleObjective(pair.ann, pair.snn, data, aims[name.split()[0]], items, *energy)
        for name, energy in KINDS.items()
    }

    def forward() -> None:
        with torch.inference_mode():
            for inputs, _ in data:
                pair.snn(inputs)

    def trial(name: str):
        return lambda: objectives[name](0.25, lambda step, value: False)

    works = {"forward": forward, **{name: trial(name) for name in objectives}}
    best = dict.fromkeys(works, float("inf"))
    for _ in range(options.rounds):
        for name, work in works.items():
            best[name] = min(best[name], seconds(work))
    for name in objectives:
        ratio = best[name] / best["forward"]
        verdict = "" if ratio <= LIMIT else f", above {LIMIT}"
        print(f"{name}: {best[name]:.3f} s, {ratio:.3f} × a forward ({best['forward']:.3f} s){verdict}")
    resident = {}
    for number in range(1, options.trials + 1):
        trial("kl")()
        if number in (5, options.trials):
            resident[number] = resident_mib()
            print(f"after {number} trials: {resident[number]:.1f} MiB resident")
    if options.record:
        cells = [{"network": f"{options.model}, {options.images}"}]
        cells[0] |= {name: best[name] / best["forward"] for name in objectives}
        cells[0] |= {f"after {number}": mib for number, mib in resident.items()}
        columns = {"network": Column("network, images")}
        columns |= {name: Column(f"`{name}`", "×", ".2f") for name in objectives}
        columns |= {f"after {n}": Column(f"memory after {n} trials", "MiB", ".1f") for n in resident}
        about = "A trial relative to a plain forward of the same images; one thread, processor time, best of the rounds."
        code = ["src/onespike/scale_search.py"]
        records.write(options.record, cells, about=about, columns=columns, code=code)


if __name__ == "__main__":
    main()
