"""Peak memory and time of converting `eva_giant_patch14_336` at full size, beside its plain forward.

    python benchmarks/eva_giant_memory.py [--depth 40] [--threads 2]

Random weights do: the memory does not depend on them. Each measurement is a process of its own, so that its peak is
its own. The converted network is calibrated on two images, converted in place, and runs one.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time


def measure(part: str, depth: int, threads: int) -> dict[str, float]:
    import torch
    from timm import create_model

    import onespike

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    seconds = {}

    def timed(name, function, *args):
        started = time.perf_counter()
        result = function(*args)
        seconds[name] = time.perf_counter() - started
        return result

    model = timed("build", lambda: create_model("eva_giant_patch14_336", depth=depth).eval())
    image = torch.randn(1, 3, 336, 336)
    if part == "converted":
        recipe = onespike.preset("sformer")
        images = [torch.randn(1, 3, 336, 336) for _ in range(2)]
        thresholds = timed("calibrate", onespike.calibrate, model, images, recipe)
        timed("convert", onespike.convert_, model, thresholds, recipe)
        seconds["spiking sites"] = sum(row["spikes"] for row in onespike.table(model))
    with torch.inference_mode():
        timed("forward", model, image)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"peak GiB": peak, **seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--depth", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--part", choices=("original", "converted"))
    options = parser.parse_args()
    if options.part:
        print(json.dumps(measure(options.part, options.depth, options.threads)))
        return
    found = {}
    for part in ("original", "converted"):
        command = [sys.executable, __file__, "--part", part, f"--depth={options.depth}"]
        command.append(f"--threads={options.threads}")
        found[part] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(part, ", ".join(f"{name} {value:.2f}" for name, value in found[part].items()), flush=True)
    print(
        f"peak memory: {found['converted']['peak GiB'] / found['original']['peak GiB']:.3f} × the original's forward"
    )


if __name__ == "__main__":
    main()
