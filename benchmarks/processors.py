"""How many spikes differ between kinds of processors: every site of the bundled vision transformer, as each would run it.

    python benchmarks/processors.py [--images 32] [--kinds default,avx2,avx512]

Each kind is a process of its own, in which torch and our kernels use the vectors of that kind (ATEN_CPU_CAPABILITY). The
float and the integer form of one calibrated network run on the same images; a visitor takes every site's counts. Where a
visitor looks, attention multiplies fired values in float in both forms.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from onespike import optimize, preset, runs
from onespike.adapters import load_model
from onespike.runtime.forward import evaluating
from onespike.sites import Operand
from onespike.sites.visitor import Visit, visiting

NETWORK, CALIBRATION, TEST = "bundled:cifar10-vit", "bundled:cifar10-calibration", "bundled:cifar10-test"


def record(run: Path, images: int, file: Path) -> None:
    """Write the counts of all sites, and the answers, of both forms."""
    pair = runs.load(run)
    x = torch.cat([x for x, _ in pair.loaded.batches(runs.choose(TEST, images), 16)])
    found = {}
    for name, network in (("float", pair.snn), ("integer", optimize(pair.snn))):
        counts: dict[str, torch.Tensor] = {}

        def take(operand: Operand, x: torch.Tensor, counts: dict[str, torch.Tensor] = counts) -> torch.Tensor:
            neuron = operand.neuron()
            if hasattr(neuron, "counts"):
                counts[str(operand.site)] = neuron.counts(x).to(torch.int16)
            return neuron(x)

        with evaluating(network), visiting(network, Visit(take)):
            answers = network(x)
        found[name] = {"counts": counts, "answers": answers}
    torch.save(found, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--kinds", default="default,avx2,avx512")
    parser.add_argument("--record", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:  # a child
        record(Path(options.record[0]), options.images, Path(options.record[1]))
        return
    kinds = options.kinds.split(",")
    pair = runs.convert_network(load_model(NETWORK), runs.choose(CALIBRATION, 64), preset("sformer"))
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"  # one calibration for all: steps must not differ
        runs.save(run, pair)
        for kind in kinds:
            command = [sys.executable, __file__, "--images", str(options.images)]
            command += ["--record", str(run), f"{folder}/{kind}"]
            subprocess.run(command, env={**os.environ, "ATEN_CPU_CAPABILITY": kind}, check=True)
        found = {kind: torch.load(f"{folder}/{kind}") for kind in kinds}
    for form in ("float", "integer"):
        base = found[kinds[-1]][form]
        for kind in kinds[:-1]:
            other = found[kind][form]
            pairs = [(base["counts"][site], other["counts"][site]) for site in base["counts"]]
            all_counts = sum(a.numel() for a, _ in pairs)
            differ = sum(int((a != b).sum()) for a, b in pairs)
            further = sum(int(((a - b).abs() > 1).sum()) for a, b in pairs)
            images = len(base["answers"])
            begun = sum((a != b).reshape(images, -1).any(1) for a, b in pairs).count_nonzero()
            same = int((base["answers"].argmax(1) == other["answers"].argmax(1)).sum())
            apart = float((base["answers"] - other["answers"]).abs().max())
            print(
                f"{form:<8}{kind:>8} / {kinds[-1]}: {differ} of {all_counts} counts differ ({1e6 * differ / all_counts:.1f} per "
                f"million; {further} by more than 1) in {begun} of {images} images, answers agree on {same}, "
                f"largest difference of a logit {apart:.2g}",
                flush=True,
            )


if __name__ == "__main__":
    main()
