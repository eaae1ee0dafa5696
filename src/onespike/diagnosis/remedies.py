"""Remedies: other recipes that may do better, and the command or call that tries each."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from onespike.adapters import NORMALIZATIONS
from onespike.errors import UsageError
from onespike.passes.chaining import check_recipe
from onespike.presets import FAST
from onespike.runs import NetworkPair
from onespike.runs.recipe_text import convert_command, spike_call
from onespike.runs.storage import WEIGHTS

VARIANTS: dict[str, dict[str, Any]] = {
    "thresholds per channel": {"granularity": "channel"},
    "softmax thresholds per head": {"softmax": "head"},
    "nearest rounding": {"rounding": "nearest"},
}
"""Recipes that may do better; each is calibrated on one half of the probe and measured on the other."""
PASSES = FAST
"""Passes to measure for a run without passes; tuning would take hours."""
OUTLIER_PASSES = ("nearest", "layout", "tokens", "allocate")
"""Options that let levels reach the largest values, and give large tokens separate steps."""


def commands(
    pair: NetworkPair,
    run: Path | None,
    scales: list[dict[str, Any]],
    kinds: dict[str, float],
    better: str | None,
) -> dict[str, str]:
    """Return the command for each remedy: a new run gets a name beside the old one; without a folder, calls of Python."""
    if run is None:
        again: Callable[..., str] = spike_call
        search = 'onespike.search(model, snn, loader, objective="kl", trials=12)'
        words = {
            "calibration": spike_call(),
            "evaluate": "onespike.evaluate(model, snn, other_batches)",
            "search": search,
            "normalization": "",
        }
    else:
        stored = run / WEIGHTS
        again = partial(convert_command, pair, f"{run}-2", weights=stored if stored.exists() else None)
        searching = ("onespike", "search", str(run), "--data", str(pair.data["source"]))
        words = {
            "calibration": again(images=max(128, len(pair.data["names"]))),
            "evaluate": shlex.join(("onespike", "evaluate", str(run), "--data", "OTHER-IMAGES")),
            "search": shlex.join((*searching, "--objective", "kl", "--trials", "12")),
            "normalization": shlex.join(("onespike", "convert", pair.loaded.spec, "--help")),
        }
    if better is not None:
        words["normalization"] = again(normalization=NORMALIZATIONS.get(better))
    if scales:
        best = min(scales, key=lambda row: float(row["kl"]))
        spends = pair.recipe.budget is not None and best["energy"] is not None
        words["scale"] = again(
            **({"budget": round(best["energy"], 3)} if spends else {"scale": best["scale"]})
        )
    else:  # neurons without λ have nothing to search
        words["search"] = words["calibration"]
    if kinds:
        worst = min(kinds, key=lambda kind: kinds[kind])
        words["kind"] = again(exclude=(*pair.recipe.exclude, worst))
    reaching = tuple(dict.fromkeys((*pair.recipe.passes, *OUTLIER_PASSES)))
    per_site = tuple(dict.fromkeys((*pair.recipe.passes, "allocate")))
    words["per site"] = words["search"]
    passes = {"passes": PASSES, "outliers": reaching, "per site": per_site}
    for name, changes in {**{name: {"passes": names} for name, names in passes.items()}, **VARIANTS}.items():
        with suppress(UsageError):  # several timesteps and some neurons take no passes
            check_recipe(pair.recipe.replace(**changes))
            words[name] = again(**changes)
    return words
