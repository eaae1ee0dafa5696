"""Passes `allocate` and `weigh`: one step per site and channel, by the effect of its errors and the cost of its spikes."""

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log
from typing import NamedTuple

import torch
from torch import Tensor

from onespike.calibration.thresholds import SiteThreshold
from onespike.energy.columns import additions_within, reading_of
from onespike.errors import UsageError
from onespike.neurons import Neuron
from onespike.passes.base import Axes, PassContext, PassState, calibration_pass, reduced
from onespike.passes.budget import fit, least, spending, target
from onespike.passes.constants import sample_gain
from onespike.passes.statistics import Fisher, Hear, Sample, fisher, gradients, judged, samples
from onespike.runtime.forward import one_thread
from onespike.sites import Operand, Site
from onespike.spikes.fire_functions import fire_function

GRID = tuple(2 ** (k / 3) for k in range(-21, 10))
"""Steps to try, in units of a channel's mean magnitude where it is not zero."""
BORROWED = 16  # the number of values in the one observation that every channel borrows from its site
FREE = 1e-26  # a multiplier at which spikes cost next to nothing
SHARE = 1 / 8
"""The charge for a spike of an operand that drives nothing: free in the ledger, but not on a chip."""
WEIGHED_IMAGES = 128
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # factors on the present steps to try
DOUBT = 8.0  # the number of inputs at which their evidence counts half
LEAST, MOST = 0.1, 1000.0  # bounds on the joint effect of errors, relative to their separate effects

Levels = tuple[int, ...]


class Choice(NamedTuple):
    """A layout and steps for one site: the minimized value, and the additions per input."""

    objective: float
    levels: Levels
    steps: Tensor
    additions: float


@dataclass
class Curve:
    """For one site and layout, by step unit and grid point: the loss g·e² and the additions per input."""

    levels: Levels
    steps: Tensor
    loss: Tensor
    cost: Tensor
    drives: bool

    def choose(self, multiplier: float) -> Choice:
        """Return the steps of least loss + multiplier·cost, with their loss and cost."""
        share = 1.0 if self.drives else SHARE
        least, best = (self.loss + multiplier * share * self.cost).min(0, keepdim=True)
        cost = float(self.cost.gather(0, best).sum()) if self.drives else 0.0
        return Choice(float(least.sum()), self.levels, self.steps.gather(0, best)[0], cost)


Curves = dict[Site, list[Curve]]  # site → its curves, one per candidate layout


@one_thread()
def chosen(curves: Curves, multiplier: float) -> dict[Site, Choice]:
    """Return the layout and steps of every site at one price of an addition."""
    return {
        site: min((curve.choose(multiplier) for curve in of_site), key=lambda choice: choice.objective)
        for site, of_site in curves.items()
    }


@dataclass
class Evidence:
    """Magnitudes of one group of positions in units of their gain, the effect of an error there, and their frequency."""

    sizes: Tensor
    information: Tensor
    weight: float


def evidence(threshold: SiteThreshold, groups: list[Sample], row: Fisher, axes: Axes) -> list[Evidence]:
    """Return the samples of a site, and for every channel one more observation, borrowed from the whole site.

    By the rule of succession it is distributed as the nonzero values of the site: calibration may have seen nothing in a
    channel where other inputs have values.
    """
    parts = []
    for group in groups:
        if group.gain < 2**20:
            gain = sample_gain(threshold, group)
            sizes = threshold.centered(group.rows).abs() / gain
            effect = row.of_positions(axes.position, group.positions, sizes)
            if threshold.typical is not None and group.positions is None:
                effect = row.of_rows(group.rows)
            parts.append(Evidence(sizes, effect * gain**2, group.weight))
    if threshold.role == "softmax":
        return parts
    fired = torch.cat([part.sizes.flatten() for part in parts])
    fired = fired[fired > 0]
    if len(fired):
        by_step = reduced(parts[0].sizes[:1], axes.step)
        elements = sum(part.sizes.numel() for part in parts)
        samples, by_channel = elements / by_step.numel(), row.mean(axes.step).to(fired.dtype)
        worth = (samples * by_channel + by_channel.mean()) / (samples + 1)
        values = fired.sort().values[((torch.arange(BORROWED) + 0.5) / BORROWED * len(fired)).long()]
        mean = sum(part.weight * part.sizes.numel() for part in parts) / elements
        shape = (BORROWED, *by_step.shape)
        sizes = values.view(-1, *[1] * by_step.dim()).expand(shape)
        parts.append(Evidence(sizes, worth.expand(shape), mean / BORROWED))
    return parts


@one_thread()
def curve(
    t: SiteThreshold, levels: Levels, seen: list[Evidence], fan_out: float, state: PassState, column: str
) -> Curve:
    """Fire the samples of a site at every step of the grid."""
    axes, spike_cost = state.axes[t.site].step, reading_of(column).additions
    fire = fire_function(levels, t.rounding or state.recipe.rounding)
    total = torch.stack([reduced(part.sizes.double(), axes) * part.weight for part in seen]).sum(0)
    number = torch.stack([reduced((part.sizes != 0).double(), axes) * part.weight for part in seen]).sum(0)
    unit = (total / number.clamp(min=1e-30)).clamp(min=1e-12).to(seen[0].sizes.dtype)
    # so that the finest steps still reach the largest value, unless levels are few
    if t.role == "softmax" and not state.recipe.payload_bits:
        unit = torch.full_like(unit, t.largest / levels[-1] / GRID[0])
    steps = torch.stack([unit * factor for factor in GRID])
    losses, costs = torch.zeros_like(steps), torch.zeros_like(steps)
    for step, loss, cost in zip(steps, losses, costs, strict=True):
        for part in seen:
            counts = fire(part.sizes / step + 0.5)
            loss += reduced((part.sizes - step * counts).pow(2) * part.information, axes) * part.weight
            cost += reduced(spike_cost(counts), axes) * part.weight
    return Curve(levels, steps, losses, costs * fan_out, state.drives(t.site))


def curves_of(state: PassState, context: PassContext) -> Curves:
    """Return the curves of all sites; remembered, since they serve every budget."""
    if context.memory.curves is not None:
        before, column, curves = context.memory.curves
        if before is state and column == context.energy:
            return curves
    rows, drawn, curves = fisher(state, context), samples(state, context), {}
    for site, t in state.spiking.items():
        seen, row = evidence(t, drawn[site], rows[site], state.axes[site]), rows[site]
        layouts = state.layouts.get(site, (t.levels,))
        curves[site] = [curve(t, levels, seen, row.fan_out, state, context.energy) for levels in layouts]
    context.memory.curves = state, context.energy, curves
    return curves


@calibration_pass("allocate", stage="steps", fisher=True, samples=True, steps=True)
def allocate(state: PassState, context: PassContext) -> PassState:
    """Choose steps of least Σ g·e² + μ·(fan-out·spikes) with one μ for the whole network, which meets the budget."""
    return allocated(state, context, curves_of(state, context), target(state, context))


def allocated(state: PassState, context: PassContext, curves: Curves, goal: float) -> PassState:
    """Return the state with the steps of these curves that meet the goal."""
    additions = additions_within(context.energy, goal, state.thresholds.macs)
    finest, most = _with_steps(state, curves, FREE)
    if most < additions and spending(finest, context) <= goal:
        return finest  # no spikes would lower the error further: the rest of the budget is left
    aim, result = additions, state
    for _ in range(3):
        result, _ = _with_steps(state, curves, _multiplier(curves, aim))
        ratio = spending(result, context)
        if abs(ratio / goal - 1) < 0.02:
            break
        aim *= goal / ratio
    return fit(result, context, goal)


def _multiplier(curves: Curves, additions: float) -> float:
    """Return the multiplier at which the steps take this many additions per input, by bisection of its logarithm."""
    low, high = log(FREE), 20.0
    for _ in range(40):
        middle = (low + high) / 2
        spent = sum(choice.additions for choice in chosen(curves, exp(middle)).values())
        low, high = (middle, high) if spent > additions else (low, middle)
    return exp(high)


def _with_steps(state: PassState, curves: Curves, multiplier: float) -> tuple[PassState, float]:
    """Return the state with the layouts and steps of a multiplier, and the additions they take."""
    changes, choices = {}, chosen(curves, multiplier)
    for site, choice in choices.items():
        step = (choice.steps / state.scale(site)).float()
        negative = step if bool((state.thresholds[site].negative > 0).any()) else step * 0
        changes[site] = {"levels": choice.levels, "positive": step, "negative": negative}
    return state.with_sites(changes), sum(choice.additions for choice in choices.values())


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
        """Return how much more errors do together than separately; nearer to 1 where few inputs have any effect."""
        inputs = self.apart.square() / self.squares.clamp(min=1e-300)
        return (self.joint / self.apart.clamp(min=1e-300)).clamp(LEAST, MOST) ** (inputs / (inputs + DOUBT))


def coherence(state: PassState, context: PassContext) -> dict[Site, Together]:
    """Return the effect of each site's errors on the output of the original network, at several sizes of their steps."""
    effects = defaultdict[Site, Together](Together)

    def see(operand: Operand, value: Tensor, padding: Tensor | None) -> Hear:
        return partial(effects[operand.site].hear, operand.neuron(), value)

    gradients("weighing", state, context, WEIGHED_IMAGES, context.seed + 2, see)
    return effects


def weighted(curve: Curve, log_step: Tensor, ratio: Tensor) -> Curve:
    """Return the curve with its loss times the joint effect of errors at each step, by the logarithms of both."""
    measured = torch.tensor([log(factor) for factor in FACTORS])
    at = (curve.steps.clamp(min=1e-30).log() - log_step).clamp(float(measured[0]), float(measured[-1]))
    right = torch.bucketize(at.contiguous(), measured).clamp(1, len(FACTORS) - 1)
    share = (at - measured[right - 1]) / (measured[right] - measured[right - 1])
    logs = ratio.log().to(curve.loss)
    return replace(curve, loss=curve.loss * torch.lerp(logs[right - 1], logs[right], share.to(logs)).exp())


@calibration_pass("weigh", stage="steps", needs=("allocate",))
def weigh(state: PassState, context: PassContext) -> PassState:
    """Allocate again, with the loss g·e² of a site times E(Σ J·e)² / E Σ(J·e)²: errors of one sign add up.

    The result is kept if it is nearer to the original network on inputs that no step was chosen by.
    """
    if context.memory.curves is None:
        raise UsageError("the pass 'weigh' needs 'allocate'. Add it, or leave 'weigh' out.")
    before, _, curves = context.memory.curves
    goal, joint = least(state, context), dict(curves)
    for site, effect in coherence(state, context).items():
        log_step, ratio = state.step(site).clamp(min=1e-30).log(), effect.ratio()
        joint[site] = [weighted(curve, log_step, ratio) for curve in curves[site]]
    return judged("weigh", state, [allocated(before, context, joint, goal)], context)
