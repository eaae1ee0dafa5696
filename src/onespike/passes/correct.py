"""Pass `correct`: the offset is re-fitted to the spikes, so that what rounding loses on average comes back as a bias."""

from __future__ import annotations

import torch
from torch import Tensor

from onespike.calibrate import SiteThreshold
from onespike.neurons import AffineFire
from onespike.passes.axes import reduced
from onespike.passes.base import Given, State, calibration_pass
from onespike.passes.budget import fit, spent
from onespike.passes.statistics import Fisher, Sample, fisher, information, samples
from onespike.sites import Site


def lost(threshold: SiteThreshold, groups: list[Sample], row: Fisher, state: State) -> Tensor:
    """Σ g·(x − o) / Σ g by channel: the constant that, added to o, leaves the least Σ g·(x − o)²."""
    axes, scale = state.axes(threshold.site), state.scale(threshold.site)
    missing, weights = torch.zeros(()), torch.zeros(())
    for group in groups:
        neuron = AffineFire(
            threshold.positive * scale, threshold.negative * scale, levels=threshold.levels, rounding=threshold.rounding
            or state.recipe.rounding, centre=threshold.centre, gain=torch.tensor(group.gain),
        )  # fmt: skip
        weight = information(row, group, axes.position, group.rows).expand_as(group.rows)
        missing = missing + reduced((group.rows - neuron(group.rows)) * weight, axes.centre) * group.weight
        weights = weights + reduced(weight, axes.centre) * group.weight
    return missing / weights.clamp(min=torch.finfo(weights.dtype).tiny)


@calibration_pass("correct", needs=("allocate",))
def correct(state: State, given: Given) -> State:
    """offset_c = centre_c + E[g·(x − o)] / E[g] at the inputs of linear maps and convolutions, where it is a bias.

    Weighted by Fisher information, since a plain mean would be that of the patch tokens, and the class token is one
    in hundreds. A least-squares fit of a constant, so it needs no ridge; the energy is then met again.
    """
    goal, known, drawn, changes = spent(state, given), fisher(state, given), samples(state, given), {}
    for site, threshold in state.spiking.items():
        if Site.parse(site).key.startswith(("linear", "conv")) and state.axes(site).centre:
            added = lost(threshold, drawn[site], known[site], state)
            centre = torch.zeros_like(added) if threshold.centre is None else threshold.centre
            changes[site] = {"centre": centre, "offset": (centre + added).float()}
    return fit(state.with_sites(changes), given, goal)
