"""Peak memory of a shallow backbone of full width at a detector's image size, converted beside unconverted.

    python benchmarks/detector_memory.py [--model eva_giant_patch14_336] [--side 1536] [--patch 16] [--depth 2]

The unconverted network has fused attention, which never holds the probabilities; the converted one must hold those
that it fires. Random weights do: the memory does not depend on them. Each row is a process of its own, so that its peak
is its own; the time is processor time.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

PARTS = ("original", "converted", "converted, spikes counted", "calibration")


def measure(part: str, options: argparse.Namespace) -> dict[str, float]:
    """The peak of this process, which builds one network and runs it once, and the processor time of that run."""
    import torch
    from timm import create_model

    import onespike

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    def build(side: int) -> torch.nn.Module:
        shape = dict(depth=options.depth, img_size=side, patch_size=options.patch)
        return create_model(options.model, num_classes=0, **shape).eval()

    recipe, model = onespike.preset("paper-eva-detection"), build(options.side)
    image = torch.randn(1, 3, options.side, options.side)
    if part.startswith(
        "converted"
    ):  # thresholds of a twin for small images, so that calibration is no part of it
        small = 8 * options.patch
        thresholds = onespike.calibrate(build(small), [torch.randn(2, 3, small, small)], recipe)
        onespike.convert_(model, thresholds, recipe)
    started = time.process_time()
    with torch.inference_mode():
        if part == "calibration":
            onespike.calibrate(model, [image], recipe)
        elif part.endswith("counted"):
            with onespike.metered(model):
                model(image)
        else:
            model(image)
    seconds = time.process_time() - started
    return {"GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, "s": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="eva_giant_patch14_336")
    for name, value in (("side", 1536), ("patch", 16), ("depth", 2), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(measure(options.part, options)))
        return
    rows: dict[str, dict[str, float]] = {}
    for part in PARTS:
        command = [sys.executable, __file__, *sys.argv[1:], "--part", part]
        child = subprocess.run(command, check=True, capture_output=True, text=True)
        row = rows[part] = json.loads(child.stdout.splitlines()[-1])
        ratios = (
            f"{value:>8.2f} {unit} {value / rows['original'][unit]:>6.2f} ×" for unit, value in row.items()
        )
        print(f"{part:<28}", *ratios, flush=True)


if __name__ == "__main__":
    main()
