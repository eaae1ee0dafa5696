"""The least energy within an allowed loss: the passes at several budgets, each judged on held-out inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from onespike.errors import UsageError
from onespike.evaluation.pairwise import Once, pairwise
from onespike.passes.base import PassContext, PassState
from onespike.passes.budget import fit, spending
from onespike.passes.statistics import held_out
from onespike.runtime.batches import inputs_of, to

START, LEAST, MOST = 0.2, 0.01, 8.0
"""The first budget to try if none is given, and how far others may be from 0 and from it."""
DOWN, UP, HALVINGS = 0.7, 1.4, 2


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


def judged(lost: Tensor, measure: str, **more: float) -> Loss:
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
        return judged(every, "the score it expects", kl=divergence / len(every), agreement=agreement)

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
    return lambda snn: judged(before - answers_of(snn), "accuracy")


def least_energy(
    state: PassState,
    context: PassContext,
    run: Callable[[PassState, PassContext], PassState],
    most: float,
    judge: Judge | None = None,
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
        enough = _below(context.budget, good, coarser)
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


def _below(most: float, good: Callable[[float], bool], coarser: Callable[[float], list[float]]) -> float:
    """Return the largest budget, or a lower one that is good, after three runs at most."""
    if not good(most):
        return most
    return next((budget for budget in reversed(coarser(most)[-2:]) if good(budget)), most)
