"""What calibration, passes, a search and an evaluation cost: processor time per input, per token and per parameter, memory
and disk.

    python benchmarks/scale.py [--only stories15M] [--assets ../shared/assets] [--out results]

Each network is a process of its own with one thread, so that its peak of memory is its own. Times are processor times,
which other work on the machine changes little, and are given beside a plain forward of the same inputs: `forwards` is
how many of them a stage takes per input. The random Llama is measured twice, in memory and with `--device-map blocks`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

PASSES = ("nearest", "layout", "center", "tokens", "allocate")
STORIES = ("language/tinystories/calibration.txt", "language/tinystories/val.txt")
NETWORKS: dict[str, tuple[Any, ...]] = {
    "bundled ViT": ("bundled:cifar10-vit", None, "bundled:cifar10-calibration", "bundled:cifar10-test", 16, 8, None, PASSES),
    "ViT-Tiny": (
        "timm:vit_tiny_patch16_224", "vit_tiny_patch16_224.safetensors", "imagenet/calibration", "imagenet/val", 8, 4, None, (),
    ),
    "stories15M": ("transformers:language/stories15M", None, *STORIES, 4, 2, 256, PASSES),
    "random Llama": (None, None, *STORIES, 4, 1, 128, ()),
    "random Llama in blocks": (None, None, *STORIES, 4, 1, 128, ()),
}  # fmt: skip
"""Network, weights, inputs to calibrate and to measure on, how many, inputs per batch, tokens per window, passes."""


def random_llama(folder: Path, assets: Path) -> Path:
    """129 million parameters: 12 layers of width 896, and the tokenizer of stories15M."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000, hidden_size=896, intermediate_size=2432, num_hidden_layers=12, num_attention_heads=14,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(assets / "language" / "stories15M").save_pretrained(folder)
    return folder


class Clock:
    """Processor seconds of named stages."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        started = time.process_time()
        result = work()
        self.seconds[name] = time.process_time() - started
        return result


def peak() -> float:
    """The largest memory so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def measure(name: str, assets: Path, scratch: Path) -> dict[str, Any]:
    import torch

    from onespike import calibrate, convert, preset, runs
    from onespike.adapters import load_model
    from onespike.passes import improve
    from onespike.runtime.batches import call
    from onespike.runtime.devices import place_
    from onespike.runtime.forward import evaluating, in_turn

    torch.set_num_threads(1)
    spec, weights, calibration, test, count, size, length, passes = NETWORKS[name]
    in_blocks = name.endswith("in blocks")
    if spec is None:
        spec = f"transformers:{scratch}"
    elif spec.startswith("transformers:"):
        spec = f"transformers:{assets / spec.partition(':')[2]}"
    given: dict[str, Any] = {} if spec.startswith("bundled") else {"pretrained": True}
    given = {"weights": assets / weights} if weights else given
    data = {p: p if p.startswith("bundled") else str(assets / p) for p in (calibration, test)}
    for library in ("timm", "transformers", "accelerate"):
        importlib.import_module(library)
    before, clock = peak(), Clock()
    loaded = load_model(spec, **given, on_disk=in_blocks)
    loaded = loaded if length is None else loaded.with_length(length)
    parameters = sum(p.numel() for p in loaded.model.parameters())
    model = place_(loaded.model, device_map="blocks" if in_blocks else None)
    items = runs.choose(data[calibration], count, loaded.task)
    inputs = list(runs.Inputs(items, loaded))
    recipe = preset("fast" if passes else "sformer").replace(passes=passes)

    def forwards(network: Any) -> None:
        with evaluating(network):
            for _ in in_turn(network, (partial(call, network, batch) for batch in inputs)):
                pass

    forwards(model)  # kernels are built, files are read
    clock("forward", lambda: forwards(model))
    peaks = {"forward": peak()}
    thresholds = clock(
        "calibration", lambda: calibrate(model, inputs, recipe.replace(passes=(), budget=None))
    )
    peaks["calibration"] = peak()
    improved = thresholds
    if passes:
        improved = clock("passes", lambda: improve(model, inputs, thresholds, recipe, task=loaded.task))
        peaks["passes"] = peak()
    snn = convert(model, improved, recipe, share_weights=True)
    clock("trial", lambda: forwards(snn))
    pair = runs.NetworkPair(loaded, model, snn, recipe, improved, {"source": "", "names": [], "sha256": []})
    measured = runs.choose_labeled(loaded, data[test], None, count)
    clock("evaluation", lambda: runs.evaluate_pair(pair, measured, batch_size=size))
    peaks["evaluation"] = peak()
    folder = Path(tempfile.mkdtemp()) / "run"
    runs.save(folder, pair)
    files = {file.name: file.stat().st_size / 1e6 for file in folder.iterdir() if file.is_file()}
    return {
        "network": name,
        "parameters": parameters,
        "macs": thresholds.macs,
        "inputs": len(items),
        "tokens": length,
        "sites": len(thresholds),
        "seconds": clock.seconds,
        "before_mb": before,
        "peak_mb": peaks,
        "weights_mb": files["weights.safetensors"],
        "thresholds_mb": files["thresholds.safetensors"],
    }


STAGES = ("calibration", "passes", "trial", "evaluation")


def table(found: list[dict[str, Any]]) -> str:
    rows = [
        "| network | parameters | MACs per input | forward | "
        + " | ".join(STAGES)
        + " | peak memory | run on disk |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        each = {stage: seconds / one["inputs"] for stage, seconds in one["seconds"].items()}
        cells = [f"{1000 * each['forward']:.0f} ms"]
        cells += [f"{each[stage] / each['forward']:.1f}" if stage in each else "–" for stage in STAGES]
        rows.append(
            f"| {one['network']} | {one['parameters'] / 1e6:.1f} M | {one['macs'] / 1e9:.2f} G | {' | '.join(cells)} | "
            f"{max(one['peak_mb'].values()) - one['before_mb']:.0f} MB | "
            f"{one['weights_mb']:.0f} + {one['thresholds_mb']:.1f} MB |"
        )
    return "\n".join(rows)


def main() -> None:
    beside = Path(__file__).resolve().parents[2] / "shared" / "assets"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--assets", type=Path, default=beside)
    parser.add_argument("--only", choices=NETWORKS, action="append")
    parser.add_argument("--out", type=Path, help="also write scale.json there")
    parser.add_argument("--one", choices=NETWORKS, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.assets, options.scratch)))
        return
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        chosen = options.only or list(NETWORKS)
        if any(NETWORKS[name][0] is None for name in chosen):
            random_llama(Path(scratch), options.assets)
        for name in chosen:
            words = [
                sys.executable,
                __file__,
                "--one",
                name,
                "--assets",
                options.assets,
                "--scratch",
                scratch,
            ]
            done = subprocess.run(list(map(str, words)), check=True, stdout=subprocess.PIPE, text=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "scale.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
