"""Passes `positions`, `center` and `tokens`: gains by position, centers of channels, gains by the magnitude of a row."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from onespike.calibration.thresholds import SiteThreshold, is_bias
from onespike.passes.base import PassContext, PassState, calibration_pass
from onespike.passes.statistics import Sample, fisher, samples
from onespike.spikes.code import row_gain

SILENT = 2.0**30  # the gain of positions without any influence: nothing fires there
FINEST, COARSEST = -4, 4
IGNORED = 1e-9


@calibration_pass("positions", stage="constants", fisher=True, affine=True)
def positions(state: PassState, context: PassContext) -> PassState:
    """Set gain_t = 2^round(log2 (r_t / median r)), r_t = (E|x_t| / g_t)^⅓; a token without any influence is silent.

    Sequences of token numbers may have any length, so a position means nothing there: they are left to the pass `tokens`.
    """
    tensors = [x for x in tree_leaves(context.inputs[0]) if isinstance(x, Tensor)]
    if tensors and not any(x.is_floating_point() for x in tensors):
        return state
    changes = {}
    for site, row in fisher(state, context).items():
        axis = state.axes[site].position
        if axis is None or row.magnitude.shape[axis] == 1:
            continue
        information = row.mean((axis,)).flatten()
        size = row.magnitude.movedim(axis, 0).flatten(1).mean(1)
        matters = information > IGNORED * information.max()
        ideal = (size / information.clamp(min=1e-30)).pow(1 / 3).log2()
        exponent = (ideal - ideal[matters].median()).round().clamp(FINEST, COARSEST)
        gain = torch.where(matters, exponent.exp2(), torch.tensor(SILENT, dtype=exponent.dtype))
        if bool((gain != 1).any()):
            changes[site] = {"gain": gain.float().view(-1, *[1] * (-axis - 1))}
    return state.with_sites(changes)


@calibration_pass("center", stage="constants", samples=True, affine=True)
def center(state: PassState, context: PassContext) -> PassState:
    """Set center = offset = the median of each channel; a side that was off is switched on, since x − μ has both signs.

    With `centers="biases"` values of one sign keep it, and only layers with one bias per output have centers.
    """
    changes, frugal = {}, state.recipe.centers == "biases"
    for site, groups in samples(state, context).items():
        threshold, axes = state.thresholds[site], state.axes[site].center
        if threshold.role == "softmax" or not axes:
            continue
        sides = (bool((side > 0).any()) for side in (threshold.positive, threshold.negative))
        if frugal and not (all(sides) and is_bias(site, context.model)):
            continue
        # the constants μ of least E|x − μ|
        rows = torch.cat([group.rows for group in groups if group.gain < 2**20])
        shape = [rows.shape[axis] if axis in axes else 1 for axis in range(1 - rows.dim(), 0)]
        moved = rows.movedim(axes, tuple(range(len(axes)))).flatten(len(axes))
        center = moved.median(-1).values.reshape(shape).float()
        if not bool((center != 0).any()):
            continue
        both = torch.maximum(threshold.positive, threshold.negative)
        changes[site] = {"center": center, "positive": both, "negative": both.clone()}
    return state.with_sites(changes)


def sample_gain(threshold: SiteThreshold, group: Sample) -> Tensor:
    """Return the gain of each sampled row: of its position, and of its magnitude where that counts."""
    gain, typical = torch.tensor(group.gain), threshold.typical
    return gain if typical is None else gain * row_gain(threshold.centered(group.rows), typical)


def shrunk(threshold: SiteThreshold, groups: list[Sample], percentile: float) -> float:
    """Return by how much the gains lower the top percentile of the values."""
    sizes = [threshold.centered(group.rows).abs().float() for group in groups]
    scaled = [x / sample_gain(threshold, group).float() for x, group in zip(sizes, groups, strict=True)]
    whole, less = (torch.cat([x.flatten() for x in parts]) for parts in (sizes, scaled))
    rank = max(1, round(len(whole) * (1 - percentile / 100)))
    before, after = (float(x.kthvalue(rank).values) for x in (whole, less))
    return after / before if before > 0 and after > 0 else 1.0


@calibration_pass("tokens", stage="constants", samples=True, affine=True)
def tokens(state: PassState, context: PassContext) -> PassState:
    """Set gain_t = 2^round(log2 (m_t / median m)), m_t = mean_c |x_tc − center_c|, from ½ to 2¹⁴, at run time.

    A few tokens may be hundreds of times as large as the others, and one step for all clips them or loses the others.
    Thresholds follow: they keep their percentile, now among the values divided by their gains.
    """
    changes = {}
    for site, groups in samples(state, context).items():
        if site.operation != "linear":
            continue
        old = state.thresholds[site]
        sizes = old.centered(torch.cat([group.rows for group in groups]).float()).abs().mean(-1).flatten()
        if bool((sizes > 0).any()):
            # where most rows are zero, the others decide
            typical = sizes.median() if bool(sizes.median() > 0) else sizes[sizes > 0].median()
            factor = shrunk(replace(old, typical=typical), groups, state.recipe.percentile)
            sides = {"positive": old.positive * factor, "negative": old.negative * factor}
            changes[site] = {"typical": typical, **sides}
    return state.with_sites(changes)
