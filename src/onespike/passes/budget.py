"""Energy of a state, and the one factor on all steps with which it meets a budget."""

from __future__ import annotations

from dataclasses import replace
from math import log

from torch import nn

from onespike.conversion.network import convert
from onespike.energy.columns import holdable
from onespike.energy.ledger import Ledger, metered
from onespike.errors import UsageError, unknown
from onespike.passes.base import PassContext, PassState
from onespike.passes.layout import reaching, steps_of_largest
from onespike.runtime.batches import call, take_first, to
from onespike.runtime.forward import device_of, evaluating

IMAGES = 32
TOLERANCE = 0.005


def check_budget(budget: float | None, energy: str) -> None:
    """The columns that passes can hold, and a ratio above 0."""
    if energy not in holdable():
        raise unknown("energy column of a budget", energy, holdable())
    if budget is not None and not budget > 0:
        raise UsageError(f"the budget must be above 0, not {budget:g}. Try 0.2.")


def measured(state: PassState, given: PassContext) -> Ledger:
    """The ledger of a state's network on the last calibration inputs, which no pass has taken its samples from.

    With few inputs they are the same ones; steps that suit the inputs they were chosen on spend less there.
    """
    snn = convert(given.model, state.thresholds, state.recipe, share_weights=True)
    return _ledger(snn, given)


def _ledger(snn: nn.Module, given: PassContext) -> Ledger:
    with evaluating(snn), metered(snn) as ledger:
        for batch in take_first(reversed(given.inputs), IMAGES):
            call(snn, to(batch, device_of(snn)))
    return ledger


def target(state: PassState, given: PassContext) -> float:
    """The budget that is asked for, or the energy that the state has."""
    if given.budget is not None:
        return given.budget
    return measured(state, given).ratio(given.energy)


def spent(state: PassState, given: PassContext) -> float:
    """The budget, or what the state spends if that is less: what `allocate` left is not needed."""
    return min(target(state, given), measured(state, given).ratio(given.energy))


def fit(state: PassState, given: PassContext, goal: float, rounds: int = 12) -> PassState:
    """All steps but those of softmax sites times one factor, so that the energy is the goal within 0.5 %.

    Energy falls as steps grow; the factor is found by secants in the logarithms, kept within their bracket.

    Raises:
        UsageError: no factor meets the goal, since the softmax sites alone cost more.
    """
    low, high, factor, exponent = 0.0, float("inf"), 1.0, 1.0
    last: tuple[float, float] | None = None
    for _ in range(rounds):
        found = scaled(state, factor)
        ratio = measured(found, given).ratio(given.energy)
        if abs(ratio / goal - 1) <= TOLERANCE:
            return found
        low, high = (factor, high) if ratio > goal else (low, factor)
        if last is not None and factor != last[0] and ratio != last[1] and min(ratio, last[1]) > 0:
            slope = -log(ratio / last[1]) / log(factor / last[0])
            exponent = min(max(slope, 0.1), 2.0)
        last = factor, ratio
        proposed = factor * (ratio / goal) ** (1 / exponent)
        inside = low < proposed < high
        factor = proposed if inside else (max(low, factor / 4) * min(high, factor * 4)) ** 0.5
        if not 1e-6 < factor < 1e6:
            break
    raise UsageError(
        f"passes: the budget {goal:g} ({given.energy}) is not met; the nearest tried was {last[1] if last else 0:.3f}. "
        "Give another budget, or the pass allocate."
    )


def scaled(state: PassState, factor: float) -> PassState:
    """Every step times a factor; softmax sites keep theirs. Tails of the pass `layout` reach as far as before."""
    changes = {}
    for site, t in state.spiking.items():
        if t.role != "softmax":
            found = replace(t, positive=t.positive * factor, negative=t.negative * factor)
            levels = t.levels
            if site in state.layouts:
                levels = reaching(levels, steps_of_largest(state, found))
            changes[site] = {"positive": found.positive, "negative": found.negative, "levels": levels}
    return state.with_sites(changes)
