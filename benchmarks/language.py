"""Perplexity (or cosine) against energy: literal conversion, passes at budgets, baselines, on one network and one text.

    python benchmarks/language.py transformers:DIR --calibrate calibration.txt --data val.txt --rows literal binary counts

Budgets and ratios are of all MACs of the original, the output layer's among them; ratios of what spikes are printed
beside them. Calibration, Fisher information and budgets use the calibration text alone. A row is a name of `ROWS`, a preset, or passes and a column:
`nearest+layout+allocate:binary`. `--prefix TEXT` lets a language model read that first, once and in floats, and
keeps its keys and values, so that tokens with massive activations may stand there.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import records
import torch
from records import Column, Figure
from torch import Tensor, nn

from onespike import runs
from onespike.adapters import load_model
from onespike.deploy.integer import optimize_
from onespike.energy.columns import of_what_spikes
from onespike.presets import FAST, PRESETS
from onespike.recipe import Recipe, preset

FIGURES = (
    "ann", "snn", "kl", "agreement", "difference", "standard_error", "cosine", "retrieval", "windows", "texts",
)  # fmt: skip
PASSES = ("nearest", "layout", "center", "allocate")
ROWS: dict[str, dict[str, Any]] = {
    "literal": {},
    "nearest": {"passes": ("nearest",)},
    "binary": {"passes": PASSES, "energy": "binary"},
    "counts": {"passes": PASSES, "energy": "counts"},
    "fast-binary": {"passes": FAST, "energy": "binary"},
    "fast-counts": {"passes": FAST, "energy": "counts"},
    "best-binary": {"passes": (*FAST, "tune"), "energy": "binary"},
    "one-step": {"passes": ("nearest",), "energy": "binary"},
    "tail": {"passes": ("nearest", "layout"), "energy": "binary"},
    "steps": {"passes": ("nearest", "tokens"), "energy": "binary"},
    "tail-steps": {"passes": ("nearest", "layout", "tokens"), "energy": "binary"},
}
"""Row → recipe fields; those with passes and a column meet a budget."""


def recipe_of(row: str, given: argparse.Namespace) -> Recipe:
    """The recipe of a row; its budget is still to be set."""
    if row in PRESETS:
        return preset(row)
    passes, _, column = row.partition(":")
    own = {"passes": tuple(passes.split("+")), "energy": column or "binary"}
    fields = ROWS.get(row, own)
    return preset("sformer", scale=given.scale, exclude=tuple(given.exclude), **fields)


CELLS = {
    "recipe": Column("recipe"), "perplexity": Column("perplexity, original → spiking", "", ".2f"),
    "difference": Column("difference", "", "+.2f"), "cosine": Column("cosine", "", ".4f"), "kl": Column("KL", "", ".3f"),
    "same": Column("next token the same", "%", ".1f"), "counts": Column("counts", "", ".3f"),
    "binary": Column("binary", "", ".3f"),
}  # fmt: skip


def recorded(row: dict[str, Any]) -> dict[str, Any]:
    """A row as its record has it."""
    cells: dict[str, Any] = {"recipe": row["row"] + (", on integers" if row["form"] == "integers" else "")}
    if "perplexity" in row.get("snn", {}):
        cells["perplexity"] = Figure(row["snn"]["perplexity"], before=row["ann"]["perplexity"])
        cells["difference"] = Figure(row["difference"], error=row["standard_error"])
    cells |= {key: row[key] for key in ("cosine", "kl") if key in row}
    cells |= {"same": 100 * row["agreement"]} if "agreement" in row else {}
    return cells | {
        name: Figure(row[name], beside=row["of_what_spikes"][name]) for name in ("counts", "binary")
    }


class Prefixed(nn.Module):
    """A language model that has read some tokens already: their keys and values are constants."""

    def __init__(self, network: Any, ids: list[int]) -> None:
        super().__init__()
        self.network = network
        with torch.inference_mode():
            cache = network(input_ids=torch.tensor([ids]), use_cache=True).past_key_values
        self.layers = len(cache.layers)
        for number, layer in enumerate(cache.layers):
            self.register_buffer(f"keys{number}", layer.keys.clone())
            self.register_buffer(f"values{number}", layer.values.clone())

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> Any:
        from transformers import DynamicCache

        cache = DynamicCache()
        for number in range(self.layers):
            kept = (getattr(self, f"{name}{number}") for name in ("keys", "values"))
            cache.update(*(tensor.expand(len(input_ids), -1, -1, -1) for tensor in kept), number)
        return self.network(input_ids=input_ids, past_key_values=cache, use_cache=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--calibrate", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--rows", nargs="+", default=["literal", "binary", "counts"])
    parser.add_argument("--binary", type=float, default=0.15, help="budget, of all MACs")
    parser.add_argument("--counts", type=float, default=0.20, help="budget, of all MACs")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--length", type=int)
    parser.add_argument("--calibration-length", type=int, help="tokens of a calibration window")
    parser.add_argument("--windows", type=int, default=24, help="that are evaluated")
    parser.add_argument("--calibration-windows", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--exclude", nargs="*", default=[])
    parser.add_argument("--prefix", help="text that a language model has read before")
    parser.add_argument(
        "--integers", action="store_true", help="also measure with 8-bit weights, on integers"
    )
    parser.add_argument("--json", type=Path)
    records.option(parser)
    given = parser.parse_args()
    found = []
    loaded = load_model(given.model, pretrained=True)
    loaded = loaded if given.length is None else loaded.with_length(given.length)
    short = loaded if given.calibration_length is None else loaded.with_length(given.calibration_length)
    calibration = runs.choose(given.calibrate, given.calibration_windows, short.task)
    items = runs.choose_labeled(loaded, given.data, None, given.windows)
    if given.prefix:
        ids = loaded.task.tokenizer.encode(given.prefix.encode().decode("unicode_escape"))[0]
        loaded = replace(loaded, model=Prefixed(loaded.model.eval(), ids))
        print("prefix", ids, flush=True)
    for name in given.rows:
        torch.manual_seed(0)
        recipe, started = recipe_of(name, given), time.process_time()
        if recipe.passes and recipe.energy in ("binary", "counts") and name != "nearest":
            recipe = recipe.replace(budget=getattr(given, recipe.energy))
        pair = runs.convert_network(loaded, calibration, recipe, batch_size=given.batch_size)
        seconds = time.process_time() - started
        for form in ("floats", "integers") if given.integers else ("floats",):
            if form == "integers":
                optimize_(pair.snn)
            record = runs.evaluate_pair(pair, items, batch_size=given.batch_size).to_dict()
            energy, analog = record["energy"], record["analog_share"]
            row = {
                "row": name, "form": form, "cpu_seconds": seconds,
                "head_share": record["head_share"], "analog_share": analog,
                "counts": energy["counts"], "binary": energy["binary"],
                "of_what_spikes": {name: of_what_spikes(name, energy[name], analog) for name in ("counts", "binary")},
                **{k: v for k, v in record.items() if k in FIGURES},
            }  # fmt: skip
            found.append(row)
            print(json.dumps(row), flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    if given.record:
        about = f"{given.model} on {Path(given.data).name}, {given.windows} windows, calibrated on {given.calibration_windows}; in parentheses, of what spikes."
        records.write(
            given.record,
            [recorded(row) for row in found],
            about=about,
            columns=CELLS,
            code=["src/onespike/passes"],
        )


if __name__ == "__main__":
    main()
