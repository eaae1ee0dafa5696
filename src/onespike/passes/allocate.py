"""Pass `allocate`: a step for each site and channel, by what its errors do to the output and what its spikes cost."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

import torch
from torch import Tensor

from onespike.calibrate import SiteThreshold
from onespike.energy import AC_PJ, MAC_PJ
from onespike.neurons.fire import fire_function
from onespike.passes.axes import reduced
from onespike.passes.base import Given, State, calibration_pass
from onespike.passes.budget import fit, measured, target
from onespike.passes.statistics import Fisher, Sample, fisher, information, samples
from onespike.tally import naf_weight

GRID = tuple(2 ** (k / 3) for k in range(-18, 10))
"""Steps that are tried, in units of a channel's mean magnitude."""
FREE = 1e-26
"""A multiplier at which spikes cost next to nothing."""
SHARE = 1 / 8
"""What a spike of an operand that drives nothing is charged with: free in the ledger, but not on a chip."""


@dataclass
class Curve:
    """For one site, by step unit and grid point: the loss g·e² and the additions for one input."""

    steps: Tensor
    loss: Tensor
    cost: Tensor
    drives: bool

    def choose(self, multiplier: float) -> tuple[Tensor, float]:
        """The steps of least loss + multiplier·cost, and the additions they take."""
        share = 1.0 if self.drives else SHARE
        best = (self.loss + multiplier * share * self.cost).argmin(0, keepdim=True)
        cost = float(self.cost.gather(0, best).sum()) if self.drives else 0.0
        return self.steps.gather(0, best)[0], cost


def spike_cost(counts: Tensor, column: str) -> Tensor:
    """Additions of spikes of these sizes in a column of the ledger."""
    if column == "counts":
        return counts.abs()
    if column == "nonzero":
        return (counts != 0).float()
    table = naf_weight(torch.arange(int(counts.abs().max()) + 1)).float()
    return table[counts.abs().long()]


def curve(
    threshold: SiteThreshold, groups: list[Sample], row: Fisher, state: State, column: str, softmax: bool
) -> Curve:
    """Fire the samples of a site at every step of the grid."""
    axes = state.axes(threshold.site)
    fire = fire_function(threshold.levels, threshold.rounding or state.recipe.rounding)
    centre = threshold.centre if threshold.centre is not None else torch.zeros(())
    heard = [group for group in groups if group.gain < 2**20]
    sizes = [reduced((g.rows - centre).abs() / g.gain, axes.step) * g.weight for g in heard]
    unit = torch.stack(sizes).sum(0)
    number = sum(g.weight * g.rows.numel() for g in heard) / unit.numel()
    unit = (unit / number).clamp(min=1e-12)
    if softmax:  # so that the largest level reaches the largest value, at the finest
        unit = torch.full_like(unit, threshold.largest / threshold.levels[-1] / GRID[0])
    steps, losses, costs = [], [], []
    for factor in GRID:
        step, loss, cost = unit * factor, torch.zeros_like(unit), torch.zeros_like(unit)
        for group in heard:
            x = (group.rows - centre) / group.gain
            counts = fire(x.abs() / step + 0.5)
            error = (x.abs() - step * counts).pow(2) * group.gain**2
            weight = information(row, group, axes.position, x)
            loss += reduced(error * weight, axes.step) * group.weight
            cost += reduced(spike_cost(counts, column), axes.step) * group.weight
        steps.append(step)
        losses.append(loss)
        costs.append(cost * row.fan_out)
    return Curve(torch.stack(steps), torch.stack(losses), torch.stack(costs), state.drives(threshold.site))


@calibration_pass("allocate")
def allocate(state: State, given: Given) -> State:
    """Steps of least Σ g·e² + μ·(fan-out·spikes) with one μ for the whole network, which meets the budget.

    For fine steps this is step ∝ (fan-out·E|x| / g)^⅓ in counts and (fan-out / g)^½ in binary digits; firing samples
    of each channel at every step of a grid also holds where spikes are rare, clipped or all zero.
    """
    goal, information, drawn = target(state, given), fisher(state, given), samples(state, given)
    curves = {
        site: curve(t, drawn[site], information[site], state, given.energy, t.role == "softmax")
        for site, t in state.spiking.items()
    }
    additions = goal * state.thresholds.macs * MAC_PJ / AC_PJ
    finest, most = _with_steps(state, curves, FREE)
    if most < additions and measured(finest, given).ratio(given.energy) <= goal:
        return finest  # spikes that lower the error further do not exist: the rest of the budget is left
    aim, result = additions, state
    for _ in range(3):
        result, _ = _with_steps(state, curves, _multiplier(curves, aim))
        ratio = measured(result, given).ratio(given.energy)
        if abs(ratio / goal - 1) < 0.02:
            break
        aim *= goal / ratio
    return fit(result, given, goal)


def _multiplier(curves: dict[str, Curve], additions: float) -> float:
    """The multiplier at which the steps take this many additions for one input, by bisection of its logarithm."""
    low, high = log(FREE), 20.0
    for _ in range(40):
        middle = (low + high) / 2
        spent = sum(found.choose(exp(middle))[1] for found in curves.values())
        low, high = (middle, high) if spent > additions else (low, middle)
    return exp(high)


def _with_steps(state: State, curves: dict[str, Curve], multiplier: float) -> tuple[State, float]:
    """The state with the steps of a multiplier, and the additions they take."""
    changes, spent = {}, 0.0
    for site, found in curves.items():
        step, cost = found.choose(multiplier)
        spent += cost
        threshold, step = state.thresholds[site], step / state.scale(site)
        negative = bool((threshold.negative > 0).any())
        changes[site] = {"positive": step.float(), "negative": (step if negative else step * 0).float()}
    return state.with_sites(changes), spent
