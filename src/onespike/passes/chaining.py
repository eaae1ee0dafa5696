"""From a network and unlabeled batches to thresholds: calibration, then a chain of passes at one energy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onespike.calibration.stream import calibrate
from onespike.calibration.thresholds import Thresholds
from onespike.passes.base import PASSES, PassContext, PassState, Progress, check_passes
from onespike.passes.budget import check_budget, fit, target
from onespike.recipe import Recipe
from onespike.runtime.processes import ALONE, Processes
from onespike.tasks import Inferred, Meaning


def no_progress(title: str, total: int) -> Callable[[Iterable[Any]], Iterable[Any]]:
    return lambda batches: batches


def check_recipe(recipe: Recipe) -> tuple[str, ...]:
    """The passes of a recipe in their order; a mistake in them or in the budget is named before anything runs."""
    check_budget(recipe.budget, recipe.energy)
    return check_passes(recipe.passes)


def prepare(
    model: nn.Module,
    batches: Iterable[Any],
    inputs: Sequence[Any],
    recipe: Recipe,
    *,
    total: int,
    folder: Path | None = None,
    progress: Progress = no_progress,
    provenance: Mapping[str, Any] | None = None,
    processes: Processes = ALONE,
    task: Meaning | None = None,
) -> Thresholds:
    """Calibrate, and improve that by the recipe's passes; a mistake in them is named before anything runs.

    Args:
        model: the original network.
        batches: what calibration reads once; of several processes, this one's share.
        inputs: what the passes read, as often as they need to: all batches.
        recipe: how to calibrate, and which passes.
        total: how many batches there are in `batches`.
        folder: where a long pass keeps what it needs to resume.
        progress: progress(title, total) wraps the batches of a long stage.
        provenance: facts about the data to be kept with the thresholds.
        processes: those that share the calibration.
        task: what the network's output means; by default, what its form says.
    """
    check_recipe(recipe)
    thresholds = calibrate(
        model,
        batches,
        recipe,
        progress=progress("calibrating", total),
        provenance=provenance,
        processes=processes,
    )
    return improve(model, inputs, thresholds, recipe, folder=folder, progress=progress, task=task)


def improve(
    model: nn.Module,
    inputs: Sequence[Any],
    thresholds: Thresholds,
    recipe: Recipe,
    *,
    folder: Path | None = None,
    progress: Progress = no_progress,
    task: Meaning | None = None,
) -> Thresholds:
    """The thresholds after the recipe's passes, at its budget or else at the energy they came with.

    Args:
        model: the original network.
        inputs: calibration batches without labels; a sequence that may load them when they are asked for.
        thresholds: what `calibrate` found with the same recipe.
        recipe: names the passes, the budget and the column of the ledger that it means.
        folder: where a long pass keeps what it needs to resume.
        progress: progress(title, total) wraps the batches of a long stage.
        task: what the network's output means; by default, what its form says.
    """
    names = check_recipe(recipe)
    if not names:
        return thresholds
    state = PassState(
        thresholds, recipe.replace(passes=(), budget=None)
    )  # on the way, they are not through yet
    given = PassContext(
        model, inputs, recipe.budget, recipe.energy, folder=folder, progress=progress, task=task or Inferred()
    )
    with torch.inference_mode(False):  # passes take gradients, wherever they are called
        given = replace(given, budget=target(state, given))
        found = chain(state, given, names).thresholds
    return replace(found, provenance={**found.provenance, "passes": list(names)})


def chain(state: PassState, given: PassContext, names: Sequence[str]) -> PassState:
    """The passes one after the other; the last steps meet the budget."""
    for name in check_passes(names):
        state = PASSES[name](state, given)
    if {"allocate", "tune"} & set(names) or given.budget is None:  # these end at the budget
        return state
    return fit(state, given, given.budget)
