"""Energy of a state, and the one factor on all steps that meets a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isnan, log
from typing import Any

import torch
from torch import nn

from onespike.conversion.network import steps_of
from onespike.energy.columns import holdable
from onespike.energy.ledger import Ledger
from onespike.energy.metering import counted
from onespike.errors import UsageError, unknown
from onespike.passes.base import PassContext, PassState
from onespike.passes.layout import reaching, steps_of_largest
from onespike.runtime.batches import split, take_first, to
from onespike.runtime.forward import device_of, evaluating, in_turn
from onespike.sites import Site

IMAGES, PART = 32, 4
"""Inputs that the energy is measured on, and how many of them give one sample of its spread."""
TOLERANCE = 0.005


def check_budget(budget: float | None, energy: str) -> None:
    """Check that passes can hold the column, and that the ratio is above 0."""
    if energy not in holdable():
        raise unknown("energy column of a budget", energy, holdable())
    if budget is not None and not budget > 0:
        raise UsageError(f"the budget must be above 0, not {budget:g}. Try 0.2.")


@dataclass(frozen=True)
class Spent:
    """The ledger of a network on a few inputs, and the relative standard error of a column's ratio on them."""

    ledger: Ledger
    error: float

    def most(self, column: str) -> float:
        """Return the expected energy of other inputs plus one standard error."""
        return self.ledger.ratio(column) * (1 + self.error)

    def to_dict(self) -> dict[str, Any]:
        """Return the ratios of all columns, ready for JSON; neurons in place of ReLUs have none."""
        ratios = {name: ratio for name, ratio in self.ledger.ratios().items() if not isnan(ratio)}
        facts = {"inputs": self.ledger.inputs, "relative_error": self.error}
        return {**facts, "ratios": ratios, "analog_share": self.ledger.analog_share}


def spent_by(snn: nn.Module, inputs: Sequence[Any], column: str, number: int = IMAGES) -> Spent:
    """Measure a network's energy on the last inputs, from which no pass takes samples: steps spend less where they were chosen."""
    whole, ratios, size = Ledger(), list[float](), max(1, PART * number // IMAGES)
    batches = take_first(reversed(inputs), max(number // steps_of(snn), PART))
    parts = (to(part, device_of(snn)) for batch in batches for part in split(batch, size))
    with evaluating(snn):
        for ledger in in_turn(snn, (partial(counted, snn, part) for part in parts)):
            ratios.append(ledger.ratio(column))
            whole.merge(ledger)
    each = torch.tensor(ratios, dtype=torch.float64)
    spread = len(each) > 1 and bool(each.mean() > 0)
    return Spent(whole, float(each.std() / len(each) ** 0.5 / each.mean()) if spread else 0.0)


def measured(state: PassState, context: PassContext) -> Spent:
    return spent_by(state.network(context.model), context.inputs, context.energy, context.portion(IMAGES))


def spending(state: PassState, context: PassContext) -> float:
    """Return the least budget that a state meets: the energy on the last calibration inputs plus its standard error."""
    return measured(state, context).most(context.energy)


def target(state: PassState, context: PassContext) -> float:
    return spending(state, context) if context.budget is None else context.budget


def least(state: PassState, context: PassContext) -> float:
    """Return the budget, or the state's energy if that is less: what `allocate` left is not needed."""
    spent = spending(state, context)
    return spent if context.budget is None else min(context.budget, spent)


def fit(state: PassState, context: PassContext, goal: float, rounds: int = 12) -> PassState:
    """Scale all steps but those of softmax sites by one factor, so that the energy is the goal within 0.5 %.

    Energy falls as steps grow: secants in the logarithms, within their bracket. If no factor meets the goal, because the
    softmax sites alone cost more, it is the nearest; `context.memory.tried` has the measured ratios.
    """
    low, high, factor, exponent = 0.0, float("inf"), 1.0, 1.0
    tried: list[tuple[float, float, PassState]] = []
    for _ in range(rounds):
        candidate = scaled(state, factor)
        ratio = spending(candidate, context)
        last = tried[-1] if tried else None
        tried.append((factor, ratio, candidate))
        if abs(ratio / goal - 1) <= TOLERANCE:
            break
        low, high = (factor, high) if ratio > goal else (low, factor)
        if last is not None and factor != last[0] and ratio != last[1] and min(ratio, last[1]) > 0:
            slope = -log(ratio / last[1]) / log(factor / last[0])
            exponent = min(max(slope, 0.1), 2.0)
        proposed = factor * (ratio / goal) ** (1 / exponent)
        inside = low < proposed < high
        factor = proposed if inside else (max(low, factor / 4) * min(high, factor * 4)) ** 0.5
        if not 1e-6 < factor < 1e6:
            break
    context.memory.tried = [ratio for _, ratio, _ in tried]
    return min(tried, key=lambda one: abs(log(max(one[1], 1e-9) / goal)))[2]


def scaled(state: PassState, factor: float) -> PassState:
    """Multiply every step by a factor; softmax sites keep theirs. Tails of the pass `layout` reach as far as before."""
    changes: dict[Site, dict[str, Any]] = {}
    for site, t in state.spiking.items():
        if t.role != "softmax":
            changes[site] = {"positive": t.positive * factor, "negative": t.negative * factor}
            if site in state.layouts:
                farthest = steps_of_largest(state, replace(t, **changes[site]))
                changes[site]["levels"] = state.recipe.payload(reaching(t.levels, farthest))
    return state.with_sites(changes)
