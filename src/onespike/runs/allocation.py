"""One step per site, at the energy of the best single λ."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from onespike.conversion.network import convert
from onespike.energy.columns import PAPER, holdable
from onespike.errors import UsageError
from onespike.passes import PassContext, PassState, chain
from onespike.passes.allocate import factors
from onespike.passes.statistics import FISHER_IMAGES
from onespike.runs.pair import NetworkPair
from onespike.runtime.batches import count
from onespike.scale_search import Search
from onespike.scale_search.objective import HALVINGS, ScaleObjective, every_of, scale_within
from onespike.tasks import Items
from onespike.tasks import limit as limit_items


@dataclass(frozen=True)
class Allocation:
    """Steps per site at the energy of the best single λ, kept only if the metric is better."""

    by: str
    scale: float
    value: float
    energy: float
    single: float
    better: bool
    factors: tuple[tuple[str, float], ...]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def allocate(
    pair: NetworkPair, measure: ScaleObjective, found: Search, by: str, items: Items, batch_size: int
) -> Allocation:
    """Return steps by the pass `allocate`, at the energy of the best single λ; sites take the mean of their channels."""
    column, budget = measure.energy or PAPER, found.best.energy
    if budget is None:
        raise UsageError(
            "search: the best trial has no energy to compare with. Search again without --resume."
        )
    few = limit_items(items, FISHER_IMAGES)
    inputs = [x for x, _ in pair.loaded.batches(few, batch_size)]
    state = PassState(
        pair.thresholds, pair.recipe.replace(scale=found.best.scale, passes=(), budget=None, max_drop=None)
    )
    given = PassContext(pair.ann, inputs, task=pair.loaded.task)
    if column in holdable():
        given = dataclasses.replace(given, budget=budget, energy=column)
    with torch.inference_mode(False):
        found_factors = factors(state, chain(state, given, ["allocate"]), by)
    measure.forwards += len(few)
    recipe = pair.recipe.replace(factors=found_factors)
    snn = convert(pair.ann, pair.thresholds, recipe, share_weights=True)
    first = measure.parts[0][0]
    scale = scale_within(snn, first, column, budget, every_of(column))
    measure.forwards += HALVINGS * count(first)
    objective = copy.copy(measure)
    objective.snn = objective.run = snn
    result = objective(scale, lambda step, value: False)
    measure.forwards = objective.forwards
    if result.energy is None or found.best.value is None:
        raise UsageError("search: the allocation could not be measured. Give more images with --limit.")
    sign = 1 if found.maximize else -1
    better = result.energy <= budget and sign * result.value > sign * found.best.value
    return Allocation(by, scale, result.value, result.energy, found.best.value, better, found_factors)
