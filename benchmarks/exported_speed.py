"""How fast exported ONNX files are beside ONNX Runtime's own int8 of the same network.

    python benchmarks/exported_speed.py --out results.json [--only 'vit-*'] [--seconds 12] [--threads 2]

Each network runs with one input and with eight. Within a case all forms take turns, and the best of the rounds counts; ratios
are to the original in eager mode. Weights are random: they do not change the time. What is measured stays measured when the
command is stopped and started again. `--processor-time` with one thread is for a machine that is shared.

original         torch, eager
integer          the converted network on integers, here
onnx float       its exported file, float form
onnx integer     its exported file, integer form
ORT float        the original in ONNX Runtime
ORT dynamic      the same by quantize_dynamic: linear maps on bytes, ranges taken from each input
ORT static       the same by quantize_static (QDQ): every operation on bytes, ranges calibrated
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import records
import torch
from comparators import exported, session
from records import Column
from speed_networks import NETWORKS, MiniLM, as_best, as_bytes, build, converted
from torch import nn

import onespike
from onespike.deploy.integer import optimize
from onespike.runtime.atomic import write_atomically

TOKENS = 128
KINDS: dict[str, Callable[..., nn.Module]] = {
    "bytes": as_bytes,
    "best": as_best,
    "sformer": lambda model, x: converted(model, x, onespike.Recipe()),
}
"""Recipes: uniform levels of one byte, and those of the presets."""
FORMS = ("original", "integer", "onnx float", "onnx integer", "ORT float", "ORT dynamic", "ORT static")


def quantized(model: nn.Module, x: torch.Tensor) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """The original in ONNX Runtime: in floats, and quantized in both of its ways."""
    import onnxruntime.quantization as quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Inputs(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter([{"x": x.numpy()}])

        def get_next(self) -> Any:
            return next(self.batches, None)

    bytes_ = {"weight_type": quantization.QuantType.QInt8, "per_channel": True}
    with tempfile.TemporaryDirectory() as name:
        before, ready, after = (Path(name) / f"{stem}.onnx" for stem in ("before", "ready", "after"))
        torch.onnx.export(model, (x,), str(before), dynamo=False, input_names=["x"], opset_version=17)
        yield "ORT float", session(before)
        quantization.quantize_dynamic(before, after, op_types_to_quantize=["MatMul", "Gemm"], **bytes_)
        yield "ORT dynamic", session(after)
        quant_pre_process(before, ready)
        activations = quantization.QuantType.QUInt8
        quantization.quantize_static(ready, after, Inputs(), activation_type=activations, **bytes_)
        yield "ORT static", session(after)


def forms(model: nn.Module, x: torch.Tensor, kind: str) -> dict[str, Callable[[Any], Any]]:
    snn = KINDS[kind](model, x)
    return {
        "original": model,
        "integer": optimize(snn, integer_units=True),
        "onnx float": exported(snn, x, integer=False),
        "onnx integer": exported(snn, x),
        **dict(quantized(model, x)),
    }


def best_seconds(
    ways: dict[str, Callable[[Any], Any]], x: torch.Tensor, seconds: float, clock: Callable[[], float]
) -> dict[str, float]:
    best = dict.fromkeys(ways, float("inf"))
    with torch.inference_mode():
        for run in ways.values():
            run(x)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for name, run in ways.items():
                started = clock()
                run(x)
                best[name] = min(best[name], clock() - started)
    return best


def line(case: str, best: dict[str, float]) -> str:
    ours, peers = best["onnx integer"], (best["ORT dynamic"], best["ORT static"])
    ratios = [*(best[form] / best["original"] for form in FORMS[1:]), ours / peers[0], ours / min(peers)]
    cells = [case, f"{1e3 * best['original']:.1f}", *(f"{ratio:.2f}" for ratio in ratios)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="a JSON file, read and continued if it exists"
    )
    parser.add_argument("--only", default="*", help="cases, such as 'vit-tiny 1'")
    parser.add_argument("--kind", default="bytes", choices=KINDS)
    parser.add_argument("--seconds", type=float, default=12, help="for the rounds of a case")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor-time", action="store_true")
    records.option(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    clock = partial(time.process_time) if options.processor_time else time.perf_counter
    rows: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    head = [
        "network, batch",
        "original, ms",
        *FORMS[1:],
        "onnx integer / ORT dynamic",
        "/ the faster ORT int8",
    ]
    print(f"| {' | '.join(head)} |", "|---" * len(head) + "|", sep="\n", flush=True)
    for name in (*NETWORKS, "minilm"):
        for batch in (1, 8):
            case = f"{name} {batch}"
            if not fnmatch(case, options.only):
                continue
            key = f"{case} {options.kind} {options.threads}"
            if key not in rows:
                model = MiniLM() if name == "minilm" else build(name)
                tokens = name == "minilm"
                x = torch.randint(0, 1000, (batch, TOKENS)) if tokens else torch.randn(batch, 3, 224, 224)
                rows[key] = best_seconds(forms(model, x, options.kind), x, options.seconds, clock)
                write_atomically(options.out, json.dumps(rows, indent=1) + "\n")
            print(line(case, rows[key]), flush=True)
    if options.record:
        cells = [
            {"case": key, "ms": 1e3 * best["original"]}
            | {form: best[form] / best["original"] for form in FORMS[1:]}
            for key, best in rows.items()
        ]
        columns = {"case": Column("network, batch, recipe, threads"), "ms": Column("original", "ms", ".1f")}
        columns |= {form: Column(form, "×", ".2f") for form in FORMS[1:]}
        about = (
            "Random weights, forms taking turns, best of the rounds; ratios to the original in eager mode."
        )
        code = ["benchmarks/comparators.py", "src/onespike/deploy/exports"]
        records.write(options.record, cells, about=about, columns=columns, code=code)


if __name__ == "__main__":
    main()
