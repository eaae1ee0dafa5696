"""Pass `weigh`: steps allocated again, by the joint effect of a site's errors instead of their separate effects."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import log

import torch
from torch import Tensor

from onespike.errors import UsageError
from onespike.neurons import Neuron
from onespike.passes.allocate import Curve, allocated
from onespike.passes.base import PassContext, PassState, calibration_pass
from onespike.passes.budget import least
from onespike.passes.statistics import Hear, gradients, judged
from onespike.sites import Operand, Site

IMAGES = 128
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors on the present steps to try."""
DOUBT = 8.0
"""The number of inputs at which their evidence counts half."""
LEAST, MOST = 0.1, 1000.0
"""Bounds on the joint effect of errors, relative to their separate effects."""


class Together:
    """Sums over inputs at one site, per factor on its steps: (Σ J·e)², Σ (J·e)², and the squares of the latter.

    J is the gradient of the log-probability of samples from the output, e = o − x the neuron's error.
    """

    def __init__(self) -> None:
        self.joint, self.apart, self.squares = torch.zeros(3, len(FACTORS)).double().unbind()

    def hear(self, neuron: Neuron, value: Tensor, gradient: Tensor) -> None:
        for index, factor in enumerate(FACTORS):
            steps = {"positive": neuron.positive * factor, "negative": neuron.negative * factor}
            self.add(index, gradient * (neuron._with(steps)(value) - value))

    def add(self, index: int, effect: Tensor) -> None:
        """Add J·e of several inputs."""
        each = (effect.flatten(1) if effect.dim() > 1 else effect[None]).double()
        apart = each.square().sum(1)
        self.joint[index] += float(each.sum(1).square().sum())
        self.apart[index] += float(apart.sum())
        self.squares[index] += float(apart.square().sum())

    def ratio(self) -> Tensor:
        """Return how much more errors do together than separately; nearer to 1 where few inputs decide.

        Inputs are weighted by their effect: most images that a network knows by heart have none.
        """
        inputs = self.apart.square() / self.squares.clamp(min=1e-300)
        effect = (self.joint / self.apart.clamp(min=1e-300)).clamp(LEAST, MOST)
        return effect ** (inputs / (inputs + DOUBT))


def coherence(state: PassState, context: PassContext) -> dict[Site, Together]:
    """Return the effect of each site's errors on the output of the original network, at several sizes of their steps."""
    effects: dict[Site, Together] = {}

    def see(operand: Operand, value: Tensor, padding: Tensor | None) -> Hear:
        row = effects.setdefault(operand.site, Together())
        return partial(row.hear, operand.neuron(), value)

    gradients("weighing", state, context, IMAGES, context.seed + 2, see)
    return effects


def weighted(curve: Curve, log_step: Tensor, ratio: Tensor) -> Curve:
    """Return the curve with its loss times the joint effect of errors at each step, by the logarithms of both."""
    measured = torch.tensor([log(factor) for factor in FACTORS])
    at = (curve.steps.clamp(min=1e-30).log() - log_step).clamp(float(measured[0]), float(measured[-1]))
    right = torch.bucketize(at.contiguous(), measured).clamp(1, len(FACTORS) - 1)
    share = (at - measured[right - 1]) / (measured[right] - measured[right - 1])
    logs = ratio.log().to(curve.loss)
    return replace(curve, loss=curve.loss * torch.lerp(logs[right - 1], logs[right], share.to(logs)).exp())


@calibration_pass("weigh", needs=("allocate",))
def weigh(state: PassState, context: PassContext) -> PassState:
    """Allocate again, with the loss g·e² of a site times E(Σ J·e)² / E Σ(J·e)².

    Errors with one sign in many places, such as those of values too small to fire, add up over tokens and
    pixels, and do far more than independent ones. The result is kept if it is nearer to the original network on inputs
    that no step was chosen by.
    """
    if context.memory.curves is None:
        raise UsageError("the pass 'weigh' needs 'allocate'. Add it, or leave 'weigh' out.")
    before, curves = context.memory.curves
    goal, joint = least(state, context), dict(curves)
    for site, effect in coherence(state, context).items():
        log_step, ratio = state.step(site).clamp(min=1e-30).log(), effect.ratio()
        joint[site] = [weighted(curve, log_step, ratio) for curve in curves[site]]
    return judged("weigh", state, [allocated(before, context, joint, goal)], context)
