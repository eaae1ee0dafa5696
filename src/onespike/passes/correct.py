"""Pass `correct`: offsets that give every channel its mean in the original network, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from onespike.calibration.thresholds import is_bias
from onespike.conversion.firing import named_neurons
from onespike.passes.base import PassContext, PassState, calibration_pass, reduced
from onespike.passes.budget import fit, least
from onespike.passes.statistics import fisher, held_out, judged, probing, unspiked
from onespike.runtime.batches import call, count, join, to
from onespike.runtime.forward import device_of, evaluating
from onespike.sites import Operand, Site

INPUTS, ELEMENTS = 64, 64 * 3 * 224 * 224
"""Inputs that go through the network together, and how many numbers they may hold."""


@calibration_pass("correct", needs=("allocate",), affine=True)
def correct(state: PassState, context: PassContext) -> PassState:
    """Set offset_c += E[g·x] / E[g] − E[g·o] / E[g] at inputs of linear maps and convolutions, where it is a bias.

    x is the value in the original network, o that of its spikes: either those of x itself, so that each site makes up for
    its own loss, or those after earlier layers are corrected, so that mean losses do not add up over the depth. The
    energy is met again, and what is nearest to the original network on inputs that nothing was fitted to is kept: the
    one, the other or neither.
    """
    free, _ = held_out("correct", context)
    goal, rows = least(state, context), fisher(state, context)
    axes = {
        site: state.axes[site]
        for site in state.spiking
        if site.operation in ("linear", "conv") and state.axes[site].center
        if state.recipe.centers == "all" or is_bias(site, context.model)
    }
    original = unspiked(state, context)
    spiking = state.network(context.model)
    fired: dict[Site, Any] = dict(named_neurons(original))
    # a module that runs several times shares one offset, that of its first run
    wanted, apart, onward = (dict[Site, Tensor]() for _ in range(3))

    def mean(site: Site, x: Tensor) -> Tensor:
        """Return the mean of each channel; a class token is one in hundreds, so its information weighs."""
        exact, position = x.double(), axes[site].position
        weighted = exact if position is None else exact * rows[site].weights(position, exact)
        return reduced(weighted, axes[site].center, "mean").to(x.dtype)

    def observe(operand: Operand, x: Tensor) -> Tensor:
        site = operand.site
        if site in axes and site not in wanted:
            wanted[site] = mean(site, x)
            apart[site] = wanted[site] - mean(site, fired[site](x))
        return x

    def shift(operand: Operand, x: Tensor) -> Tensor:
        site, value = operand.site, operand.value(x)
        if site not in wanted:  # spikes may take a path, such as an expert, that the original did not
            return value
        if site not in onward:
            onward[site] = wanted[site] - mean(site, value)
        return value + onward[site]

    inputs = to(_together([context.inputs[i] for i in free], context.portion(INPUTS)), device_of(original))
    for model, probe in ((original, observe), (spiking, shift)):
        with evaluating(model), probing(model, probe):
            call(model, inputs)
    corrected = [fit(_moved(state, offsets), context, goal) for offsets in (apart, onward)]
    return judged("correct", state, corrected, context)


def _moved(state: PassState, offsets: Mapping[Site, Tensor]) -> PassState:
    changes = {}
    for site, added in offsets.items():
        threshold = state.thresholds[site]
        center = torch.zeros_like(added) if threshold.center is None else threshold.center
        before = center if threshold.offset is None else threshold.offset
        changes[site] = {"center": center.cpu(), "offset": (before.to(added) + added).float().cpu()}
    return state.with_sites(changes)


def _together(batches: Sequence[Any], inputs: int) -> Any:
    """Return as many of the first inputs as may go through the network at once, in one batch."""
    chosen, seen = list[Any](), 0
    for batch in batches:
        elements = sum(x.numel() for x in tree_leaves(batch) if isinstance(x, Tensor))
        if chosen and (seen >= inputs or elements * (len(chosen) + 1) > ELEMENTS):
            break
        chosen.append(batch)
        seen += count(batch)
    return join(chosen)
