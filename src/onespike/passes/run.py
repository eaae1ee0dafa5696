"""A chain of passes on one calibration, at one energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from onespike.calibrate import Thresholds
from onespike.passes.base import PASSES, Given, Progress, State, check_passes
from onespike.passes.budget import check_budget, fit, target
from onespike.recipe import Recipe


def check_recipe(recipe: Recipe) -> tuple[str, ...]:
    """The passes of a recipe in their order; a mistake in them or in the budget is named before anything runs."""
    check_budget(recipe.budget, recipe.energy)
    return check_passes(recipe.passes)


def improve(
    model: nn.Module,
    inputs: Sequence[Tensor],
    thresholds: Thresholds,
    recipe: Recipe,
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Thresholds:
    """The thresholds after the recipe's passes, at its budget or else at the energy they came with.

    Args:
        model: the original network.
        inputs: calibration batches without labels; a sequence that may load them when they are asked for.
        thresholds: what `calibrate` found with the same recipe.
        recipe: names the passes, the budget and the column of the ledger that it means.
        folder: where a long pass keeps what it needs to resume.
        progress: progress(title, total) wraps the batches of a long stage.
    """
    names = check_recipe(recipe)
    if not names:
        return thresholds
    state = State(thresholds, recipe)
    given = Given(model, inputs, recipe.budget, recipe.energy, folder=folder)
    if progress is not None:
        given = replace(given, progress=progress)
    given = replace(given, budget=target(state, given))
    return chain(state, given, names).thresholds


def chain(state: State, given: Given, names: Sequence[str]) -> State:
    """The passes one after the other; the last steps meet the budget."""
    for name in check_passes(names):
        state = PASSES[name](state, given)
    if {"allocate", "tune"} & set(names) or given.budget is None:  # these end at the budget
        return state
    return fit(state, given, given.budget)
