"""How fast a converted network is beside the one it came from: `make bench`, or this file with --quick.

Each case (network, batch, threads) runs in a process of its own. Within it the variants take turns, so that a busy
machine slows all of them alike, and the best of the rounds counts. Ratios are to the original network in eager mode.
Weights are random: they do not change the time. What is not installed, fails or would take too long is listed with the
reason; a case that is stopped keeps what it has measured.
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
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import records
import torch
from comparators import exported, onnxruntime_int8, spikingjelly, torchao_int8
from machine import processor
from records import Column
from speed_networks import as_best, build, converted
from torch import nn

import onespike
from onespike import kernels
from onespike.deploy.integer import optimize_
from onespike.runtime.atomic import write_atomically

TOKENS = {197: 224, 577: 384, 1025: 512}
"""Tokens of a vision transformer with patches of 16 → side of its images."""
STEPS = {"if": (8, 32), "ecmt": (4,)}
"""Presets with several timesteps, and the numbers of steps to time."""
LEAST = 45
"""Seconds that a case has in any case: building a network on a busy machine takes many of them."""
PASS = 6
"""What one step of many takes at most, in forwards of the original network: a guess, to leave out what cannot end."""
BESIDE = ("eager", "integer")
"""Forms of the network that keep taking turns with what they are compared with."""
CLOCK = time.perf_counter
Forward = Callable[..., Any]
Variant = tuple[str, Callable[[], Forward]]


class LeftOutError(Exception):
    """Why a variant is not measured."""


def variants(model: nn.Module, x: torch.Tensor, quick: bool) -> Iterator[Variant]:
    """The forms of the network itself: (name, what builds its forward), the ones that take long last."""
    snn = converted(model, x, onespike.Recipe())
    yield "original eager", lambda: model
    yield "converted eager", lambda: snn
    if quick:
        return
    yield "converted integer", lambda: _integer(snn)
    yield "best eager", lambda: as_best(model, x)
    yield "best integer", lambda: _integer(as_best(model, x))
    yield "original compiled", lambda: torch.compile(model)
    yield "converted compiled", lambda: torch.compile(snn)


def others(name: str, model: nn.Module, x: torch.Tensor, seconds: float) -> Iterator[Variant]:
    """What the converted network is compared with, likewise. Add a line for another comparison."""
    yield "exported ONNX integer", lambda: exported(converted(model, x, onespike.Recipe()), x)
    yield "ONNX Runtime int8", lambda: onnxruntime_int8(model, x)
    yield "torchao int8 compiled", lambda: torch.compile(_torchao(model, x, seconds))
    yield "torchao int8 eager", lambda: _torchao(model, x, seconds)
    for preset, numbers in STEPS.items() if len(x) == 1 else ():
        for steps in numbers:
            yield f"{preset} T={steps}", lambda p=preset, t=steps: _stepped(model, x, p, t, seconds)
    for steps in STEPS["if"] if name == "resnet18" else ():
        yield f"SpikingJelly T={steps}", lambda t=steps: spikingjelly(model, x, t)


def _integer(snn: nn.Module) -> Forward:
    fast = copy.deepcopy(snn)
    done = optimize_(fast)
    if not done.integer:
        raise LeftOutError(f"simulated here: {done}")
    return fast


def _stepped(model: nn.Module, x: torch.Tensor, preset: str, steps: int, seconds: float) -> Forward:
    """T passes of the whole network on running means, through our own preset."""
    _check_time(PASS * steps, model, x, seconds)
    return converted(model, x, onespike.preset(preset, steps=steps))


def _check_time(times: float, model: nn.Module, x: torch.Tensor, seconds: float) -> None:
    """Leave out what takes so many times the original's forward, if that is too long."""
    with torch.inference_mode():
        likely = times * _clock(model, x)
    if likely > seconds:
        raise LeftOutError(f"it could take {likely:.0f} s, and the case has {seconds:.0f} s; raise --budget")


def _torchao(model: nn.Module, x: torch.Tensor, seconds: float) -> nn.Module:
    """Its product of bytes is a plain loop where a processor has no instruction for it."""
    numbers = torch.randn(256, 256)
    integers = numbers.to(torch.int8)
    products = ((torch._int_mm, integers), (torch.mm, numbers))
    loop, fast = (min(_clock(partial(product, a), a) for _ in range(3)) for product, a in products)
    _check_time(loop / fast, model, x, seconds)
    return torchao_int8(model)


def _clock(forward: Forward, x: torch.Tensor) -> float:
    started = CLOCK()
    forward(x)
    return CLOCK() - started


def speed(
    name: str, batch: int, size: int, seconds: float, quick: bool, skip: str
) -> Iterator[dict[str, Any]]:
    """Best times and what was left out, anew after each step, so that a case that is stopped has its last.

    The forms of the network first, in rounds; then the comparisons, and rounds of all.
    """
    model, x = build(name, size), torch.randn(batch, 3, size, size)
    short = quick or size != 224
    best: dict[str, float] = {}
    forwards: dict[str, Forward] = {}
    left_out: dict[str, str] = {}
    for group in (variants(model, x, short), () if short else others(name, model, x, seconds)):
        for label, make in group:
            if fnmatch(label, skip):
                left_out[label] = "skipped, as asked"
                continue
            try:
                forward = make()
                with torch.inference_mode():
                    first = _clock(forward, x)  # compilation, caches
                    slow = first > seconds / 4 and "compiled" not in label
                    best[label] = first if slow else _clock(forward, x)
            except Exception as error:  # noqa: BLE001 (one comparison less; the others go on)
                reason = str(error).strip().splitlines() or [type(error).__name__]
                left_out[label] = f"not measured: {reason[0][:160]}"
            else:
                forwards |= {} if best[label] > seconds / 10 else {label: forward}
            yield {"seconds": best, "left out": left_out}
        started = time.perf_counter()
        with torch.inference_mode():
            while forwards and time.perf_counter() - started < seconds:
                for label, forward in forwards.items():
                    best[label] = min(best[label], _clock(forward, x))
                yield {"seconds": best, "left out": left_out}
        # beside the comparisons only what they are compared with runs on
        forwards = {label: forward for label, forward in forwards.items() if label.split()[-1] in BESIDE}


def calibration(name: str, images: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Calibration beside the plain forward of the same images, taking turns."""
    model, batches = build(name), list(torch.randn(images, 3, 224, 224).split(8))
    best = {"forward": float("inf"), "calibrate": float("inf")}

    def forward(batches: list[torch.Tensor]) -> None:
        with torch.inference_mode():
            for batch in batches:
                model(batch)

    started = time.perf_counter()
    while best["calibrate"] == float("inf") or time.perf_counter() - started < seconds:
        for label, run in (("forward", forward), ("calibrate", partial(onespike.calibrate, model))):
            best[label] = min(best[label], _clock(run, batches))
        yield {"seconds": best, "images": images}


def memory(name: str, batch: int, size: int, which: str) -> Iterator[dict[str, Any]]:
    """The peak of this process, which runs one network only."""
    model, x = build(name, size), torch.randn(batch, 3, size, size)
    if which == "converted":
        model = converted(model, x[:1], onespike.Recipe())
    with torch.inference_mode():
        model(x)
    yield {"peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def cases(quick: bool, images: int) -> Iterator[dict[str, Any]]:
    """The case of the goals first, with a larger share of the time; then the others."""
    base = "vit-tiny" if quick else "vit-base"
    speeds = [
        dict(kind="speed", name=name, batch=batch, size=224, threads=threads)
        for name in (("vit-tiny",) if quick else ("vit-base", "vit-tiny", "resnet18"))
        for batch in (8, 1)
        for threads in (2, 1)
    ]
    for case in speeds:
        yield dict(case, share=10 if case["name"] == "vit-base" and case["batch"] == 8 else 2)
    for size in () if quick else list(TOKENS.values())[1:]:
        yield dict(kind="speed", name="vit-tiny", batch=1, size=size, threads=1, share=1)
    for batch in () if quick else (2, 32):
        yield dict(kind="speed", name="vit-tiny", batch=batch, size=TOKENS[577], threads=1, share=1)
    for name in {base, "vit-tiny"}:
        yield dict(kind="calibrate", name=name, batch=8, size=224, threads=1, images=images, share=1)
    for size in (224,) if quick else TOKENS.values():
        for which in ("original", "converted"):
            yield dict(kind="memory", name=base, batch=8, size=size, threads=1, which=which, share=0.5)


def run_case(case: dict[str, Any], seconds: float, quick: bool, skip: str) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(case["threads"])
    name, batch, size = case["name"], case["batch"], case["size"]
    if case["kind"] == "speed":
        return speed(name, batch, size, seconds, quick, skip)
    if case["kind"] == "memory":
        return memory(name, batch, size, case["which"])
    return calibration(name, case["images"], seconds)


def measured(command: list[str], limit: float) -> dict[str, Any]:
    """The last state that a child printed, and why it ended if it did not end well."""
    failed = None
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        printed = child.stdout
        if child.returncode:
            failed = (child.stderr.strip().splitlines() or [f"it ended with {child.returncode}"])[-1]
    except subprocess.TimeoutExpired as error:
        printed = (error.stdout or b"").decode()
        failed = f"stopped after {limit:.0f} s"
    states = [line for line in printed.split("\n")[:-1] if line.startswith("{")]
    return {**(json.loads(states[-1]) if states else {}), **({"failed": failed} if failed else {})}


def describe(case: dict[str, Any], result: dict[str, Any]) -> Iterator[str]:
    what = f"{case['name']} batch {case['batch']}, {case['size']}², {case['threads']} thread(s)"
    times = result.get("seconds", {})
    if "peak MB" in result:
        yield f"{what}: peak of the {case['which']} network's process {result['peak MB']:.0f} MB"
    elif "calibrate" in times:
        ratio, each = times["calibrate"] / times["forward"], 1e3 * times["calibrate"] / result["images"]
        yield f"{what}: calibration on {result['images']} images {each:.1f} ms each, {ratio:.2f} × their plain forward"
    else:
        yield f"{what}: {case['kind']}"
        for name, best in times.items():
            yield f"    {name:<22}{1e3 * best:>10.1f} ms{best / times['original eager']:>8.2f} ×"
        yield from (f"    {name:<22}{reason}" for name, reason in result.get("left out", {}).items())
    if "failed" in result:
        yield f"    {result['failed']}"


GOALS: tuple[tuple[str, int, str, str, dict[str, float]], ...] = (
    ("vit-base", 8, "converted integer", "original eager", {"VNNI": 0.28, "AVX2": 0.70}),
    ("vit-base", 8, "converted integer", "ONNX Runtime int8", {"": 1.0}),
    ("vit-base", 8, "converted integer", "torchao int8 compiled", {"": 1.0}),
    ("vit-base", 8, "best integer", "converted integer", {"": 1.05}),
    ("resnet18", 8, "converted integer", "original eager", {"VNNI": 0.60}),
    ("vit-base", 8, "converted eager", "original eager", {"": 1.05}),
    ("vit-base", 8, "best eager", "original eager", {"": 1.15}),
    ("vit-base", 8, "converted compiled", "original compiled", {"": 1.03}),
    ("vit-tiny", 1, "converted eager", "original eager", {"": 1.15}),
)
"""(network, batch, variant, beside which, {processor's units: the largest ratio})."""


def against_goals(rows: list[dict[str, Any]], units: str) -> Iterator[str]:
    """One line for each goal and number of threads: what was measured, and whether it is met."""
    yield f"{'goal':<78}{'at most':>8}{'found':>8}   with {units}"
    for name, batch, variant, beside, limits in GOALS:
        limit = next((ratio for unit, ratio in limits.items() if unit in units), None)
        for row in rows:
            times = row.get("seconds", {})
            if limit is None or (row["kind"], row["name"], row["batch"], row["size"]) != (
                "speed",
                name,
                batch,
                224,
            ):
                continue
            what = f"{name} batch {batch}, {row['threads']} thread(s): {variant} / {beside}"
            found = times[variant] / times[beside] if variant in times and beside in times else None
            verdict = (
                "not measured" if found is None else f"{found:8.2f}   {'met' if found <= limit else 'missed'}"
            )
            yield f"{what:<78}{limit:>8.2f}{verdict}"


def is_of_goals(case: dict[str, Any]) -> bool:
    """Whether a goal speaks of this case."""
    of_goals = {(name, batch) for name, batch, *_ in GOALS}
    return case["kind"] == "speed" and case["size"] == 224 and (case["name"], case["batch"]) in of_goals


def units() -> str:
    """What multiplies integers here."""
    path = kernels.best_path()
    return "no integer units" if path is None else path.name


def main() -> None:
    global CLOCK
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="ViT-Tiny and the eager forms only, about a minute"
    )
    parser.add_argument("--budget", type=float, default=540, help="seconds for all cases together")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/speed.json"), help="where the figures go"
    )
    parser.add_argument("--images", type=int, help="to calibrate on: 32 by default, 8 if quick")
    parser.add_argument(
        "--goals", action="store_true", help="the cases that the goals speak of, with all comparisons"
    )
    parser.add_argument("--only", default="*", help="cases to run, such as 'speed vit-base 8 *'")
    parser.add_argument("--skip", default="", help="variants to leave out, such as 'torchao*'")
    parser.add_argument("--processor-time", action="store_true", help="for a machine that is shared")
    records.option(parser)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    CLOCK = time.process_time if options.processor_time else time.perf_counter
    if options.case:  # a child: one case, each state on a line of standard output
        case = json.loads(options.case)
        for state in run_case(case, options.budget, options.quick, options.skip):
            print(json.dumps(state), flush=True)
        return
    todo = [
        case
        for case in cases(options.quick, options.images or (8 if options.quick else 32))
        if fnmatch(_label(case), options.only) and (is_of_goals(case) or not options.goals)
    ]
    budget = min(options.budget, 60) if options.quick else options.budget
    started, rows = time.monotonic(), []
    print(f"{processor()}; integer products: {units()}; torch {torch.__version__}", flush=True)
    for number, case in enumerate(todo):
        left = budget - (time.monotonic() - started)
        # what a case does not use, later ones may; a quarter of it for each group's rounds, the rest to build and compile
        limit = max(left * case["share"] / sum(other["share"] for other in todo[number:]), LEAST)
        command = [sys.executable, __file__, "--case", json.dumps(case), "--budget", str(limit / 4)]
        command += ["--skip", options.skip]
        command += ["--quick"] * options.quick + ["--processor-time"] * options.processor_time
        result = measured(command, limit)
        rows.append({**case, **result})
        print("\n".join(describe(case, result)), flush=True)
    facts = {
        "features": processor(),
        "torch": torch.__version__,
        "onespike": onespike.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "integer units": [path.name for path in kernels.paths()],
        "neurons": kernels.note(),
        "clock": "processor time" if options.processor_time else "wall time",
    }
    write_atomically(options.out, json.dumps({"machine": facts, "cases": rows}, indent=1) + "\n")
    if options.record:
        about = f"Milliseconds ({facts['clock']}), variants taking turns, best of the rounds, and the ratio to the original in eager mode; integer products: {units()}."
        code = ["src/onespike/kernels", "src/onespike/deploy"]
        records.write(options.record, recorded(rows), about=about, columns=CELLS, code=code)
    print("\n".join(against_goals(rows, units())))
    print(
        f"written to {options.out}; neurons run in the form: {kernels.note()}; torch's vectors: {facts['processor']}"
    )


CELLS = {
    "case": Column("network, batch, pixels, threads"), "variant": Column("form"), "ms": Column("time", "ms", ".1f"),
    "ratio": Column("ratio", "×", ".2f"), "peak": Column("peak memory", "MB", ".0f"),
}  # fmt: skip


def recorded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each variant of each case."""
    cells = []
    for row in rows:
        case = f"{row['name']}, {row['batch']}, {row['size']}², {row['threads']}"
        times = row.get("seconds", {})
        base = times.get("original eager", times.get("forward"))
        cells += [
            {"case": case, "variant": name, "ms": 1e3 * best, "ratio": best / base}
            for name, best in times.items()
            if best < float("inf")
        ]
        if "peak MB" in row:
            cells.append(
                {"case": case, "variant": f"process of the {row['which']} network", "peak": row["peak MB"]}
            )
    return cells


def _label(case: dict[str, Any]) -> str:
    return f"{case['kind']} {case['name']} {case['batch']} {case['size']} {case['threads']}"


if __name__ == "__main__":
    main()
