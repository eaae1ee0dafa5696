"""Pass `center`: the neuron codes x − μ, and the product with the constant μ becomes a bias."""

from __future__ import annotations

import torch
from torch import Tensor

from onespike.passes.base import PassContext, PassState, calibration_pass
from onespike.passes.statistics import Sample, samples


def median(groups: list[Sample], axes: tuple[int, ...]) -> Tensor:
    """Return the median of a site's values along these axes: the constant μ of least E|x − μ|."""
    rows = torch.cat([group.rows for group in groups if group.gain < 2**20])
    shape = [rows.shape[axis] if axis in axes else 1 for axis in range(1 - rows.dim(), 0)]
    moved = rows.movedim(axes, tuple(range(len(axes)))).flatten(len(axes))
    return moved.median(-1).values.reshape(shape).float()


@calibration_pass("center", affine=True)
def center(state: PassState, context: PassContext) -> PassState:
    """Set center = offset = the median of each channel; a side that was off is switched on, since x − μ has both signs."""
    changes = {}
    for site, groups in samples(state, context).items():
        threshold, axes = state.thresholds[site], state.axes(site).center
        if threshold.role == "softmax" or not axes:
            continue
        center = median(groups, axes)
        if not bool((center != 0).any()):
            continue
        both = torch.maximum(threshold.positive, threshold.negative)
        changes[site] = {"center": center, "positive": both, "negative": both.clone()}
    return state.with_sites(changes)
