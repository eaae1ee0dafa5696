"""How fast a converted network is beside the one it came from: `make bench`, or this file with --quick.

Each case (network, batch, threads) runs in a process of its own. Within it the variants take turns, so that a busy
machine slows all of them alike, and the best of the rounds counts. Ratios are to the original network in eager mode.
Weights are random: they do not change the time. What is not installed is listed with the reason, and left out.
"""

from __future__ import annotations

import argparse
import copy
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import onespike
from onespike import kernels
from onespike.files import write_atomically
from onespike.integer import optimize_

NETWORKS = {
    "vit-tiny": ("timm", "vit_tiny_patch16_224"),
    "vit-base": ("timm", "vit_base_patch16_224"),
    "resnet18": ("torchvision", "resnet18"),
}
TOKENS = {197: 224, 577: 384, 1025: 512}
"""Tokens of a vision transformer with patches of 16 → side of its images."""
STEPS = (8, 32)
Forward = Callable[[torch.Tensor], Any]


def build(name: str, size: int = 224) -> nn.Module:
    library, model = NETWORKS[name]
    torch.manual_seed(0)
    if library == "timm":
        import timm

        extra = {"img_size": size} if size != 224 else {}
        return timm.create_model(model, **extra).eval()
    import torchvision

    return torchvision.models.get_model(model, weights=None).eval()


def converted(model: nn.Module, x: torch.Tensor, **recipe: Any) -> nn.Module:
    thresholds = onespike.calibrate(model, [x[:2]], onespike.Recipe(**recipe))
    return onespike.convert(model, thresholds, onespike.Recipe(**recipe), share_weights=True)


def variants(name: str, model: nn.Module, x: torch.Tensor, quick: bool) -> Iterator[tuple[str, Any]]:
    """(name, forward) for all that can run here, (name, reason) for the rest. Add a line for another comparison."""
    yield "original eager", model
    snn = converted(model, x)
    yield "converted eager", snn
    if quick:
        return
    fast = copy.deepcopy(snn)
    yield ("converted integer" if optimize_(fast).integer else "integer, simulated"), fast
    yield "original compiled", torch.compile(model)
    yield "converted compiled", torch.compile(snn)
    # T steps of integrate-and-fire at each site, within one pass of the network; one image is slow enough
    for steps in STEPS if len(x) == 1 else ():
        yield f"IF sites T={steps}", converted(model, x, neuron="if", levels=f"linear:{steps // 2}")
    if name == "resnet18":
        yield from _spikingjelly(model, x)
    yield from _torchao(model)


def _spikingjelly(model: nn.Module, x: torch.Tensor) -> Iterator[tuple[str, Any]]:
    """Rate coding with T passes of the whole network, as SpikingJelly's ann2snn does it."""
    try:
        from spikingjelly.activation_based import ann2snn, functional
    except ImportError as error:
        yield "SpikingJelly ann2snn", f"not measured: {error}"
        return
    network = ann2snn.Converter(mode="max", dataloader=[(x[:2], None)])(model).eval()

    def run(x: torch.Tensor, steps: int) -> torch.Tensor:
        functional.reset_net(network)
        return torch.stack([network(x) for _ in range(steps)]).mean(0)

    for steps in STEPS:
        yield f"SpikingJelly T={steps}", lambda x, steps=steps: run(x, steps)


def _torchao(model: nn.Module) -> Iterator[tuple[str, Any]]:
    try:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
    except ImportError as error:
        yield "torchao int8", f"not measured: {error}"
        return
    quantised = copy.deepcopy(model)
    quantize_(quantised, Int8DynamicActivationInt8WeightConfig())
    yield "torchao int8 eager", quantised
    yield "torchao int8 compiled", torch.compile(quantised)


def take_turns(forwards: dict[str, Forward], x: torch.Tensor, seconds: float) -> dict[str, float]:
    """The best time of each; one whose warm-up took more than a tenth of all the time is not run again."""
    best, started = dict.fromkeys(forwards, float("inf")), time.perf_counter()
    running = dict(forwards)
    with torch.inference_mode():
        for name, forward in forwards.items():
            first = _clock(forward, x)  # compilation, caches
            slow = first > seconds / 10 and "compiled" not in name
            best[name] = first if slow else _clock(forward, x)
            if best[name] > seconds / 10:
                running.pop(name)
        while running and time.perf_counter() - started < seconds:
            for name, forward in running.items():
                best[name] = min(best[name], _clock(forward, x))
    return best


def _clock(forward: Forward, x: torch.Tensor) -> float:
    started = time.perf_counter()
    forward(x)
    return time.perf_counter() - started


def speed(name: str, batch: int, size: int, seconds: float, quick: bool) -> dict[str, Any]:
    model, x = build(name, size), torch.randn(batch, 3, size, size)
    forwards, left_out = {}, {}
    for label, what in variants(name, model, x, quick or size != 224):
        if isinstance(what, str):
            left_out[label] = what
        else:
            forwards[label] = what
    return {"seconds": take_turns(forwards, x, seconds), "left out": left_out}


def calibration(name: str, images: int, seconds: float) -> dict[str, Any]:
    """Calibration beside the plain forward of the same images, taking turns."""
    model, batches = build(name), list(torch.randn(images, 3, 224, 224).split(8))
    best = {"forward": float("inf"), "calibrate": float("inf")}
    started = time.perf_counter()
    while best["calibrate"] == float("inf") or time.perf_counter() - started < seconds:
        with torch.inference_mode():
            before = time.perf_counter()
            for batch in batches:
                model(batch)
            best["forward"] = min(best["forward"], time.perf_counter() - before)
        before = time.perf_counter()
        onespike.calibrate(model, batches)
        best["calibrate"] = min(best["calibrate"], time.perf_counter() - before)
    return {"seconds": best, "images": images}


def memory(name: str, batch: int, size: int, which: str) -> dict[str, Any]:
    """The peak of this process, which runs one network only."""
    model, x = build(name, size), torch.randn(batch, 3, size, size)
    if which == "converted":
        model = converted(model, x[:1])
    with torch.inference_mode():
        model(x)
    return {"peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def cases(quick: bool) -> Iterator[dict[str, Any]]:
    base = "vit-tiny" if quick else "vit-base"
    for threads in (1, 2):
        for name in NETWORKS if not quick else ("vit-tiny",):
            for batch in (1, 8):
                yield dict(kind="speed", name=name, batch=batch, size=224, threads=threads)
    for which in ("original", "converted"):
        for size in (224,) if quick else TOKENS.values():
            yield dict(kind="memory", name=base, batch=8, size=size, threads=1, which=which)
    for size in () if quick else list(TOKENS.values())[1:]:
        yield dict(kind="speed", name="vit-tiny", batch=1, size=size, threads=1)
    yield dict(kind="calibrate", name=base, batch=8, size=224, threads=1, images=8 if quick else 32)


def run_case(case: dict[str, Any], seconds: float, quick: bool) -> dict[str, Any]:
    torch.set_num_threads(case["threads"])
    name, batch, size = case["name"], case["batch"], case["size"]
    if case["kind"] == "speed":
        return speed(name, batch, size, seconds, quick)
    if case["kind"] == "memory":
        return memory(name, batch, size, case["which"])
    return calibration(name, case["images"], seconds)


def describe(case: dict[str, Any], result: dict[str, Any]) -> Iterator[str]:
    what = f"{case['name']} batch {case['batch']}, {case['size']}², {case['threads']} thread(s)"
    if "failed" in result:
        yield f"{what}: {case['kind']} failed: {result['failed']}"
    elif case["kind"] == "memory":
        yield f"{what}: peak of the {case['which']} network's process {result['peak MB']:.0f} MB"
    elif case["kind"] == "calibrate":
        times = result["seconds"]
        ratio = times["calibrate"] / times["forward"]
        yield f"{what}: calibration on {result['images']} images {ratio:.2f} × their plain forward"
    else:
        yield what
        first = result["seconds"]["original eager"]
        for name, best in result["seconds"].items():
            yield f"    {name:<22}{1e3 * best:>10.1f} ms{best / first:>8.2f} ×"
        yield from (f"    {name:<22}{reason}" for name, reason in result["left out"].items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="ViT-Tiny and the eager forms only, about a minute"
    )
    parser.add_argument("--budget", type=float, default=540, help="seconds for all cases together")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/speed.json"), help="where the figures go"
    )
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    todo = list(cases(options.quick))
    share = min(options.budget, 60 if options.quick else options.budget) / len(todo)
    if options.case:  # a child: one case, its result on standard output
        print(json.dumps(run_case(json.loads(options.case), share / 3, options.quick)))
        return
    started, rows = time.monotonic(), []
    for number, case in enumerate(todo):
        left = options.budget - (time.monotonic() - started)
        # what a case does not use, later ones may
        limit = max(left - (len(todo) - number - 1) * share / 2, share)
        command = [sys.executable, __file__, "--case", json.dumps(case), "--budget", str(options.budget)]
        try:
            child = subprocess.run(
                command + ["--quick"] * options.quick, capture_output=True, text=True, timeout=limit
            )
            lines = child.stdout.splitlines()
            ended = (child.stderr.strip().splitlines() or ["no message"])[-1]
            result = json.loads(lines[-1]) if child.returncode == 0 else {"failed": ended}
        except subprocess.TimeoutExpired:
            result = {"failed": f"not done within {limit:.0f} s"}
        rows.append({**case, **result})
        print("\n".join(describe(case, result)), flush=True)
    facts = {
        "torch": torch.__version__,
        "onespike": onespike.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "neurons": kernels.note(),
    }
    write_atomically(options.out, json.dumps({"machine": facts, "cases": rows}, indent=1) + "\n")
    print(f"written to {options.out}; neurons run in the form: {kernels.note()}")


if __name__ == "__main__":
    main()
