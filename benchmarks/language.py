"""Perplexity (or cosine) against energy: literal conversion, passes at budgets, baselines, on one network and one text.

    python benchmarks/language.py transformers:DIR --calibrate calibration.txt --data val.txt --rows literal binary counts

Budgets are over the products that spike, without the output layer, whose share is printed beside them. Calibration,
Fisher information and budgets use the calibration text alone.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from onespike import runs
from onespike.adapters import load_model
from onespike.conversion.network import analog_reason
from onespike.recipe import Recipe, preset
from onespike.sites import Site
from onespike.tasks import limit

PASSES = ("nearest", "layout", "center", "allocate")
ROWS: dict[str, dict[str, Any]] = {
    "literal": {},
    "nearest": {"passes": ("nearest",)},
    "binary": {"passes": PASSES, "energy": "binary"},
    "counts": {"passes": PASSES, "energy": "counts"},
    "tokens-binary": {"passes": (*PASSES, "tokens"), "energy": "binary"},
    "tokens-counts": {"passes": (*PASSES, "tokens"), "energy": "counts"},
    "correct-binary": {"passes": (*PASSES, "correct"), "energy": "binary"},
    "correct-counts": {"passes": (*PASSES, "correct"), "energy": "counts"},
    "tune-binary": {"passes": (*PASSES, "tune"), "energy": "binary"},
    "tune-counts": {"passes": (*PASSES, "tune"), "energy": "counts"},
    "steps-binary": {"passes": ("nearest", "layout", "tokens"), "energy": "binary"},
    "plain-layout-binary": {"passes": ("nearest", "layout", "allocate"), "energy": "binary"},
    "plain-tokens-binary": {"passes": ("nearest", "layout", "tokens", "allocate"), "energy": "binary"},
    "no-layout-binary": {"passes": ("nearest", "allocate"), "energy": "binary"},
}
"""Row → recipe fields; those with passes meet a budget."""


def spiking_share(thresholds: Any, recipe: Recipe) -> float:
    """The share of MACs whose product has a spiking operand."""
    products: dict[str, tuple[float, bool]] = {}
    for site, threshold in thresholds.items():
        product = Site.parse(site).product
        spikes = products.get(product, (0.0, False))[1] or analog_reason(threshold, recipe) is None
        products[product] = (threshold.macs, spikes)
    return sum(macs for macs, spikes in products.values() if spikes) / thresholds.macs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--calibrate", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--rows", nargs="+", default=["literal", "binary", "counts"])
    parser.add_argument("--binary", type=float, default=0.15, help="budget over what spikes")
    parser.add_argument("--counts", type=float, default=0.20, help="budget over what spikes")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--length", type=int)
    parser.add_argument("--calibration-length", type=int, help="tokens of a calibration window")
    parser.add_argument("--windows", type=int, default=24, help="that are evaluated")
    parser.add_argument("--calibration-windows", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--exclude", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    found, share = [], None
    for name in given.rows:
        loaded = load_model(given.model, pretrained=True)
        loaded = loaded if given.length is None else loaded.with_length(given.length)
        short = loaded if given.calibration_length is None else loaded.with_length(given.calibration_length)
        calibration = runs.choose(given.calibrate, given.calibration_windows, short.task)
        items = runs.choose_labeled(loaded, given.data, None, given.windows)
        recipe = (
            preset("sformer", scale=given.scale, exclude=tuple(given.exclude), **ROWS[name])
            if name in ROWS
            else preset(name)
        )
        started = time.perf_counter()
        if recipe.passes and recipe.passes != ("nearest",):
            if share is None:
                plain = runs.convert_network(
                    loaded, limit(calibration, 1), recipe.replace(passes=()), batch_size=1
                )
                share = spiking_share(plain.thresholds, plain.recipe)
            recipe = recipe.replace(budget=share * getattr(given, recipe.energy))
        pair = runs.convert_network(loaded, calibration, recipe, batch_size=given.batch_size)
        seconds = time.perf_counter() - started
        record = runs.evaluate_pair(pair, items, batch_size=given.batch_size).to_dict()
        spiking = 1 - record["analog_share"]
        row = {
            "row": name, "seconds": seconds, "head_share": record["head_share"], "analog_share": record["analog_share"],
            "counts": record["energy"]["counts"] / spiking, "binary": record["energy"]["binary"] / spiking,
            **{k: v for k, v in record.items() if k in ("ann", "snn", "kl", "agreement", "difference", "standard_error", "cosine", "retrieval", "windows", "texts")},
        }  # fmt: skip
        found.append(row)
        print(json.dumps(row), flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
