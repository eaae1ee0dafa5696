"""What passes aim at: a budget, met by one factor on all steps, and an allowed loss, met by the least of several budgets."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isnan, log
from typing import Any

import torch
from torch import Tensor, nn

from onespike.conversion.network import steps_of
from onespike.energy.columns import beside, holdable
from onespike.energy.ledger import Ledger
from onespike.energy.metering import counted
from onespike.errors import OnespikeWarning, UsageError, unknown
from onespike.evaluation.pairwise import Once, pairwise
from onespike.passes.base import Improve, PassContext, PassState
from onespike.passes.layout import reaching, steps_of_largest
from onespike.passes.statistics import held_out
from onespike.runtime.batches import inputs_of, split, take_first, to
from onespike.runtime.forward import device_of, evaluating, in_turn
from onespike.sites import Site

IMAGES, PART = 32, 4
"""Inputs that the energy is measured on, and how many of them give one sample of its spread."""
TOLERANCE, ROUNDS = 0.005, 12
START, LEAST, MOST = 0.2, 0.01, 8.0
"""The first budget to try if none is given, and how far others may be from 0 and from it."""
DOWN, UP, HALVINGS = 0.7, 1.4, 2


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


def energy_of(state: PassState, context: PassContext, budget: float | None) -> dict[str, Any]:
    """Return the network's energy on the last calibration inputs, in every column; warn about a missed budget."""
    spent = measured(state, context)
    most = spent.most(context.energy)
    if budget is not None and most > budget * (1 + 2 * TOLERANCE):
        tried = ", ".join(f"{ratio:.3f}" for ratio in context.memory.tried or [most])
        warnings.warn(
            f"passes: the budget {budget:g} ({context.energy}) is not met; steps of several sizes gave {tried}. The nearest "
            f"is kept, {beside(context.energy, most, spent.ledger.analog_share)}. Give a larger budget, or the pass allocate.",
            OnespikeWarning,
            stacklevel=4,
        )
    return spent.to_dict()


def target(state: PassState, context: PassContext) -> float:
    return spending(state, context) if context.budget is None else context.budget


def least(state: PassState, context: PassContext) -> float:
    """Return the budget, or the state's energy if that is less: what `allocate` left is not needed."""
    spent = spending(state, context)
    return spent if context.budget is None else min(context.budget, spent)


def fit(state: PassState, context: PassContext, goal: float) -> PassState:
    """Scale all steps but those of softmax sites by one factor, so that the energy is the goal within 0.5 %.

    Energy falls as steps grow: secants in the logarithms, within their bracket. If no factor meets the goal, because the
    softmax sites alone cost more, it is the nearest; `context.memory.tried` has the measured ratios.
    """
    low, high, factor, exponent = 0.0, float("inf"), 1.0, 1.0
    tried: list[tuple[float, float, PassState]] = []
    for _ in range(ROUNDS):
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
        factor = proposed if low < proposed < high else (max(low, factor / 4) * min(high, factor * 4)) ** 0.5
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


@dataclass(frozen=True)
class Loss:
    """The loss of a spiking network against the original.

    `drop` is that of the score, as a share: 0.01 is one point of accuracy. Its standard error is paired by input.
    Without labels there are also nats per input (`kl`) and the share of inputs with the same answer (`agreement`).
    """

    drop: float
    error: float
    inputs: int
    measure: str
    kl: float | None = None
    agreement: float | None = None

    def within(self, most: float) -> bool:
        """Return whether the loss plus its standard error is within this."""
        return self.drop + self.error <= most

    def __str__(self) -> str:
        text = f"{100 * self.drop:.2f} ± {100 * self.error:.2f} points of {self.measure}"
        text += f" on {self.inputs} inputs"
        if self.kl is not None and self.agreement is not None:
            text += f" (agreement {100 * self.agreement:.1f} %, KL {self.kl:.4f})"
        return text


Judge = Callable[[nn.Module], Loss]


def loss_of(lost: Tensor, measure: str, **more: float) -> Loss:
    """Return the loss whose mean over inputs is the drop."""
    each = lost.double()
    error = float(each.std() / len(each) ** 0.5) if len(each) > 1 else 0.0
    return Loss(float(each.mean()), error, len(each), measure, **more)


def by_itself(context: PassContext, held: Sequence[Any]) -> Judge:
    """Judge without labels, on calibration inputs: the loss that the original's output expects of other answers."""
    task, original, unlabeled = context.task, Once(context.model), [(batch, None) for batch in held]

    def judge(snn: nn.Module) -> Loss:
        lost, differing, divergence = list[Tensor](), list[Tensor](), 0.0
        for _, _, (expected, output) in pairwise((original, snn), unlabeled):
            lost.append(task.lost(expected, output).detach().cpu())
            differing.append((task.differences(expected, output) > 0).float().cpu())
            divergence += float(task.divergence(expected, output).detach())
        every = torch.cat(lost)
        agreement = 1 - float(torch.cat(differing).mean())
        return loss_of(every, "the score it expects", kl=divergence / len(every), agreement=agreement)

    return judge


def by_labels(model: nn.Module, labeled: Iterable[tuple[Any, Any]], task: Any) -> Judge:
    """Judge on labeled inputs: right answers that became wrong, less wrong answers that became right."""
    batches = [(inputs_of(model, inputs), labels) for inputs, labels in labeled]

    def answers_of(network: nn.Module) -> Tensor:
        right = []
        for _, labels, (output,) in pairwise((network,), batches):
            answers = None if labels is None else task.right(output, to(labels, "cpu"))
            if answers is None:
                raise UsageError(
                    "max_drop: these labels do not say whether an answer is right. Leave the validation data out."
                )
            right.append(answers[0].cpu().double())
        return torch.cat(right)

    before = answers_of(model)
    return lambda snn: loss_of(before - answers_of(snn), "accuracy")


def least_energy(
    state: PassState, context: PassContext, run: Improve, most: float, judge: Judge | None = None
) -> tuple[float, dict[float, tuple[PassState, Loss]]]:
    """Return the least budget whose loss is within `most`, or that of the least loss, and the result of each that was tried.

    `run` runs the passes at the budget of a context. A budget that the context has is the most: it is kept where even that
    loses more, and lower ones are tried where it does not. The standard error counts as loss, which is measured without labels on the last calibration inputs if there is no `judge`.
    """
    judge = judge or by_itself(context, [context.inputs[i] for i in held_out("max_drop", context)[1]])
    tried: dict[float, tuple[PassState, Loss]] = {}

    def good(budget: float) -> bool:
        after = run(state, replace(context, budget=budget))
        tried[budget] = after, judge(after.network(context.model))
        return tried[budget][1].within(most)

    def coarser(budget: float) -> list[float]:
        """Return lower budgets, down to the first at which larger steps alone, without the passes again, lose too much."""
        (after, _), lower = tried[budget], list[float]()
        while budget * DOWN > LEAST:
            budget *= DOWN
            lower.append(budget)
            if not judge(fit(after, context, budget).network(context.model)).within(most):
                break
        return lower

    if context.budget is None:
        enough = _around(START, good, lambda budget: spending(tried[budget][0], context) < 0.9 * budget)
    else:
        enough = context.budget
        if good(enough):  # of the lower ones two are tried
            enough = next((budget for budget in reversed(coarser(enough)[-2:]) if good(budget)), enough)
    return enough or min(tried, key=lambda one: tried[one][1].drop), tried


def _around(start: float, good: Callable[[float], bool], idle: Callable[[float], bool]) -> float:
    """Return the least good budget on either side of the first, or 0; above an idle one finer steps change nothing."""
    enough, scarce = (start, 0.0) if good(start) else (0.0, start)
    while enough and not scarce and enough * DOWN > LEAST:
        enough, scarce = (enough * DOWN, 0.0) if good(enough * DOWN) else (enough, enough * DOWN)
    while scarce and not enough and scarce * UP < MOST:
        enough, scarce = (scarce * UP, scarce) if good(scarce * UP) else (0.0, scarce * UP)
        if not enough and idle(scarce):
            break
    for _ in range(HALVINGS if enough and scarce else 0):
        middle = (enough * scarce) ** 0.5
        enough, scarce = (middle, scarce) if good(middle) else (enough, middle)
    return enough
