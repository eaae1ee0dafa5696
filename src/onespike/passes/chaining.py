"""From a network and unlabeled batches to thresholds: calibration, then a chain of passes at one energy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from onespike.calibration.stream import calibrate
from onespike.calibration.thresholds import Thresholds
from onespike.errors import OnespikeWarning, UsageError
from onespike.neurons import NEURONS
from onespike.passes.base import AFFINE, PASSES, WHOLE, PassContext, PassState, Progress, check_passes
from onespike.passes.budget import TOLERANCE, check_budget, fit, measured, spending, target
from onespike.passes.tolerance import Judge, least_energy
from onespike.recipe import Recipe
from onespike.runtime.batches import count, split
from onespike.runtime.blocks import blocks_of
from onespike.runtime.processes import ALONE, Processes
from onespike.tasks import Inferred, Meaning


def no_progress(title: str, total: int) -> Callable[[Iterable[Any]], Iterable[Any]]:
    return lambda batches: batches


def check_recipe(recipe: Recipe) -> tuple[str, ...]:
    """Return the passes of a recipe in order; mistakes in them or in the budget are found before anything runs."""
    check_budget(recipe.budget, recipe.energy)
    names = check_passes(recipe.passes)
    affine = [name for name in names if name in AFFINE]
    if affine and f"affine-{recipe.neuron}" not in NEURONS:
        raise UsageError(
            f"the neuron '{recipe.neuron}' codes no centers, offsets or gains, which the passes {', '.join(affine)} give. "
            "Leave them out, or use neuron='sfn'."
        )
    return names


def refuse_whole(model: nn.Module, recipe: Recipe) -> None:
    """Refuse what needs all weights in memory of a network that lies in blocks."""
    if blocks_of(model) is None:
        return
    whole = [name for name in recipe.passes if name in WHOLE]
    if whole:
        rest = ",".join(name for name in recipe.passes if name not in WHOLE)
        raise UsageError(
            f"blocks: {' and '.join(whole)} change weights, and need all of them in memory. Leave them out: --passes {rest}."
        )
    if recipe.fold_batchnorm and any(isinstance(m, _BatchNorm) for m in model.modules()):
        raise UsageError(
            "blocks: BatchNorm cannot be folded into weights that are not in memory. Give --fold-batchnorm no."
        )


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
    judge: Judge | None = None,
) -> Thresholds:
    """Calibrate, then apply the recipe's passes; mistakes in them are found before anything runs.

    Args:
        model: the original network.
        batches: the batches for calibration, read once; with several processes, this one's share.
        inputs: all batches, for the passes, read as often as needed.
        recipe: how to calibrate, and which passes.
        total: the number of batches in `batches`.
        folder: the folder for a long pass's resume data.
        progress: progress(title, total) wraps the batches of a long stage.
        provenance: facts about the data to keep with the thresholds.
        processes: the processes that share the calibration.
        task: the meaning of the network's output; by default inferred from its form.
        judge: how a loss is measured for the recipe's `max_drop`; by default without labels, on calibration inputs.
    """
    check_recipe(recipe)
    refuse_whole(model, recipe)
    thresholds = calibrate(
        model,
        batches,
        recipe,
        progress=progress("calibrating", total),
        provenance=provenance,
        processes=processes,
    )
    return improve(
        model, inputs, thresholds, recipe, folder=folder, progress=progress, task=task, judge=judge
    )


def improve(
    model: nn.Module,
    inputs: Sequence[Any],
    thresholds: Thresholds,
    recipe: Recipe,
    *,
    folder: Path | None = None,
    progress: Progress = no_progress,
    task: Meaning | None = None,
    judge: Judge | None = None,
) -> Thresholds:
    """Return the thresholds after the recipe's passes, at its budget or else at their initial energy.

    Args:
        model: the original network.
        inputs: calibration batches without labels; a sequence that may load them on demand.
        thresholds: the result of `calibrate` with the same recipe.
        recipe: the passes, the budget and its column of the ledger.
        folder: the folder for a long pass's resume data.
        progress: progress(title, total) wraps the batches of a long stage.
        task: the meaning of the network's output; by default inferred from its form.
        judge: how a loss is measured for the recipe's `max_drop`; by default without labels, on calibration inputs.
    """
    names = check_recipe(recipe)
    refuse_whole(model, recipe)
    if not names:
        return thresholds
    state = PassState(
        thresholds, recipe.replace(passes=(), budget=None, max_drop=None)
    )  # they are not through the passes yet
    given = PassContext(
        model, parted(inputs), recipe.budget, recipe.energy, folder=folder, progress=progress,
        task=task or Inferred(),
    )  # fmt: skip
    facts: dict[str, Any] = {}
    with torch.inference_mode(False):  # passes take gradients, wherever they are called
        if recipe.max_drop is None:
            given = replace(given, budget=target(state, given))
            found = chain(state, given, names)
        else:
            found, facts = _tolerated(state, given, names, recipe.max_drop, judge)
        facts["energy"] = _spent(found, given, recipe.budget if recipe.max_drop is None else None)
    provenance = {**found.thresholds.provenance, "passes": list(names), **facts}
    return replace(found.thresholds, provenance=provenance)


def _tolerated(
    state: PassState, given: PassContext, names: Sequence[str], most: float, judge: Judge | None
) -> tuple[PassState, dict[str, Any]]:
    """Find the least energy within a loss; `tune`, which only lowers the loss, comes once at the end."""
    names = check_passes(names)
    before = names[: names.index("allocate")] if "allocate" in names else ()
    after = [name for name in names if name not in before and name != "tune"]
    for name in before:  # passes that no budget changes
        state = PASSES[name](state, given)

    def run(state: PassState, given: PassContext) -> PassState:
        return _through(state, given, after)

    found = least_energy(state, given, run, most, judge)
    if not found.loss.within(most):
        warnings.warn(
            f"passes: no energy that was tried stays within a loss of {100 * most:g} %. The least loss is kept: "
            f"{found.loss}. Allow more, or give other passes.",
            OnespikeWarning,
            stacklevel=4,
        )
    result = found.state
    if "tune" in names:
        result = PASSES["tune"](result, replace(given, budget=spending(result, given)))
    tried = [{"budget": budget, **asdict(loss)} for budget, loss in found.tried]
    return result, {"loss": {**asdict(found.loss), "max_drop": most, "tried": tried}}


def _spent(state: PassState, given: PassContext, budget: float | None) -> dict[str, Any]:
    """Return the network's energy on the last calibration inputs, in every column; warn about a missed budget."""
    found = measured(state, given)
    most = found.most(given.energy)
    if budget is not None and most > budget * (1 + 2 * TOLERANCE):
        tried = ", ".join(f"{ratio:.3f}" for ratio in given.memory.get("tried", ())) or f"{most:.3f}"
        warnings.warn(
            f"passes: the budget {budget:g} ({given.energy}) is not met; steps of several sizes gave {tried}. The nearest "
            f"is kept, {most:.3f}. Give a larger budget, or the pass allocate.",
            OnespikeWarning,
            stacklevel=4,
        )
    return found.to_dict()


def parted(inputs: Sequence[Any]) -> Sequence[Any]:
    """Return the batches; a single batch in four parts, since some passes judge by inputs that they did not see.

    >>> [len(part) for part in parted([torch.zeros(10, 2)])], len(parted([1, 2]))
    ([3, 3, 3, 1], 2)
    """
    if len(inputs) != 1 or count(inputs[0]) < 2:
        return inputs
    return list(split(inputs[0], -(-count(inputs[0]) // 4)))


def chain(state: PassState, given: PassContext, names: Sequence[str]) -> PassState:
    """Run the passes in order; the last steps meet the budget."""
    return _through(state, given, check_passes(names))


def _through(state: PassState, given: PassContext, names: Sequence[str]) -> PassState:
    for name in names:
        state = PASSES[name](state, given)
    if {"allocate", "tune"} & set(names) or given.budget is None:  # these end at the budget
        return state
    return fit(state, given, given.budget)
