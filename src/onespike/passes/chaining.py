"""From the thresholds of calibration to better ones: a chain of passes at one energy."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from onespike.calibration.thresholds import Thresholds
from onespike.errors import OnespikeWarning, UsageError, unknown
from onespike.neurons import NEURONS
from onespike.passes.base import PASSES, PassContext, PassState
from onespike.passes.budget import Judge, check_budget, energy_of, fit, least_energy, spending, target
from onespike.passes.statistics import fisher, samples
from onespike.recipe import Recipe
from onespike.runtime.forward import in_memory, in_order
from onespike.sites import Site
from onespike.sites.padding import token_lengths
from onespike.tasks import Inferred, Meaning


def check_passes(names: Sequence[str]) -> tuple[str, ...]:
    """Return the passes in order; refuse an unknown, repeated or missing one."""
    for name in names:
        if name not in PASSES:
            raise unknown("pass", name, PASSES)
        if list(names).count(name) > 1:
            raise UsageError(f"the pass '{name}' is given twice. Name each pass once.")
        for other in set(PASSES[name].needs) - set(names):
            raise UsageError(f"the pass '{name}' needs '{other}'. Add it, or leave '{name}' out.")
    return tuple(name for name in PASSES if name in names)


def check_recipe(recipe: Recipe, model: nn.Module | None = None) -> tuple[str, ...]:
    """Return the passes of a recipe in order; mistakes in them or in the budget are found before anything runs.

    Of a network that lies in blocks, what needs all weights in memory is refused, too.
    """
    check_budget(recipe.budget, recipe.energy)
    names = check_passes(recipe.passes)
    if names and recipe.fixed:
        raise UsageError(
            f"fixed {recipe.fixed[0][0]!r} and the passes {', '.join(names)} would both set thresholds. "
            "Leave fixed out, or take the preset sformer, which has no passes."
        )
    affine = [name for name in names if PASSES[name].affine]
    if affine and not NEURONS[recipe.neuron].affine:
        raise UsageError(
            f"the neuron '{recipe.neuron}' codes no centers, offsets or gains, which the passes {', '.join(affine)} give. "
            "Leave them out, or use neuron='sfn'."
        )
    if model is None or in_memory(model):
        return names
    whole = [name for name in recipe.passes if PASSES[name].whole]
    if whole:
        rest = ",".join(name for name in recipe.passes if name not in whole)
        raise UsageError(
            f"blocks: {' and '.join(whole)} change weights, and need all of them in memory. Leave them out: passes='{rest}'."
        )
    if recipe.fold_batchnorm and any(isinstance(m, _BatchNorm) for m in model.modules()):
        raise UsageError(
            "blocks: BatchNorm cannot be folded into weights that are not in memory. Give fold_batchnorm=False."
        )
    return names


def improve(
    model: nn.Module,
    inputs: Sequence[Any],
    thresholds: Thresholds,
    recipe: Recipe,
    *,
    folder: Path | None = None,
    task: Meaning | None = None,
    judge: Judge | None = None,
) -> Thresholds:
    """Return the thresholds of `calibrate` after the recipe's passes, at its budget or else at their initial energy.

    `inputs` are calibration batches without labels, a sequence that may load them on demand; `folder` is for a long
    pass's resume data, and `judge` measures a loss for the recipe's `max_drop`, by default on calibration inputs.
    """
    names = check_recipe(recipe, model)
    if not names:
        return thresholds
    # they are not through the passes yet
    state = PassState(thresholds, recipe.replace(passes=(), budget=None, max_drop=None))
    context = PassContext(model, inputs, recipe.budget, recipe.energy, folder=folder, task=task or Inferred())
    facts: dict[str, Any] = {}
    with torch.inference_mode(False), in_order(model):  # passes take gradients, wherever they are called
        unjudged = recipe.budget is not None and judge is None and len(context.inputs) < 2
        if recipe.max_drop is None or unjudged:
            context = replace(context, budget=target(state, context))
            state = chain(state, context, names)
        else:
            state, facts = _tolerated(state, context, names, recipe.max_drop, judge)
        facts["energy"] = energy_of(state, context, recipe.budget)
    provenance = {**state.thresholds.provenance, "passes": list(names), **facts}
    return replace(state.thresholds, provenance=provenance)


def _tolerated(
    state: PassState, context: PassContext, names: Sequence[str], most: float, judge: Judge | None
) -> tuple[PassState, dict[str, Any]]:
    """Find the least energy within a loss; what learns, and so only lowers the loss, comes once at the end."""
    state = served(state, context, names)
    stages = {name: PASSES[name].stage for name in names}
    for name in names:
        if stages[name] in ("levels", "constants"):  # no budget changes these
            state = PASSES[name].run(state, context)
    after = [name for name in names if stages[name] in ("steps", "corrections", "last")]
    chosen, results = least_energy(state, context, partial(_through, names=after), most, judge)
    state, loss = results[chosen]
    if context.budget is None and not loss.within(most):
        warnings.warn(
            f"passes: no energy that was tried stays within a loss of {100 * most:g} %. The least loss is kept: "
            f"{loss}. Allow more, or give other passes.",
            OnespikeWarning,
            stacklevel=4,
        )
    for name in names:
        if stages[name] == "learning":
            state = PASSES[name].run(state, replace(context, budget=spending(state, context)))
    tried = [{"budget": budget, **asdict(loss)} for budget, (_, loss) in results.items()]
    return state, {"loss": {**asdict(loss), "max_drop": most, "tried": tried}}


def chain(state: PassState, context: PassContext, names: Sequence[str]) -> PassState:
    """Run the passes in order; the last steps meet the budget."""
    names = check_passes(names)
    return _through(
        served(state, context, names), context, [n for n in names if PASSES[n].stage != "network"]
    )


def served(state: PassState, context: PassContext, names: Sequence[str]) -> PassState:
    """Change the network, and set aside, with one warning, the sites of which passes learn nothing; they keep their thresholds."""
    facts: list[Mapping[Site, Any]] = []
    for name in names:
        if PASSES[name].stage == "network":
            state = PASSES[name].run(state, context)
    if any(PASSES[name].fisher for name in names):
        facts.append(fisher(state, context))
    if any(PASSES[name].samples for name in names):
        facts.append(samples(state, context))
    lengths = token_lengths(context.inputs[0]) if facts else set[int]()
    learned = set(state.spiking).intersection(*facts)
    unserved = [s for s in state.spiking if s not in learned or _sums_over_tokens(state, s, lengths)]
    if not unserved:
        return state
    why = "their sizes differ from call to call or with the length of a text, or no gradient or no input reaches them"
    if len(unserved) == len(state.spiking):
        raise UsageError(
            f"passes: no site can be improved: {why}; the first is {unserved[0]}. Give calibration inputs of one size, or "
            "leave the passes out."
        )
    warnings.warn(
        f"passes: {len(unserved)} of {len(state.spiking)} sites keep the thresholds of calibration, since {why}: "
        f"{', '.join(map(str, unserved))}. Leave them analog with exclude, or give calibration inputs of one size.",
        OnespikeWarning,
        stacklevel=5,
    )
    return replace(state, unserved=frozenset(unserved))


def _sums_over_tokens(state: PassState, site: Site, lengths: set[int]) -> bool:
    """Return whether a product adds up over the tokens of a text, and is no attention whose rows are probabilities.

    Constants by channel would be constants by token there. Attention multiplies by kᵀ first, then by v.
    """
    left = state.thresholds.get(site.operand("lhs"))
    if site.operation != "matmul" or (site.number or 0) % 2 == 0 or left is None:
        return False
    return left.role != "softmax" and left.shape[-1] in lengths


def _through(state: PassState, context: PassContext, names: Sequence[str]) -> PassState:
    before = state
    for name in names:
        state = PASSES[name].run(state, context)
    if any(PASSES[name].steps for name in names) or context.budget is None:  # these end at the budget
        return state
    if _only_scaled(before, state):
        raise UsageError(
            f"passes: {', '.join(names)} multiplies all steps by one factor, and scaling them to the budget takes it back. "
            'Register it with @calibration_pass("NAME", steps=True), whose steps stay.'
        )
    return fit(state, context, context.budget)


def _only_scaled(before: PassState, after: PassState) -> bool:
    """Return whether passes changed nothing but all steps, by one factor: what `fit` would undo."""
    ratios = set[float]()
    for site, threshold in before.spiking.items():
        other = after.thresholds[site]
        changed = {name for name, fact in vars(threshold).items() if getattr(other, name) is not fact}
        if not changed <= {"positive", "negative"}:
            return False
        if threshold.role != "softmax":
            for old, new in ((threshold.positive, other.positive), (threshold.negative, other.negative)):
                ratios |= {round(ratio, 5) for ratio in (new / old)[old > 0].flatten().tolist()}
    return after.recipe == before.recipe and len(ratios) == 1 and ratios != {1.0}
