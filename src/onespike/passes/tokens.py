"""Pass `tokens`: steps by the magnitude of a token, in powers of two, at inputs of linear maps of any length."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from onespike.calibration.thresholds import SiteThreshold
from onespike.passes.base import PassContext, PassState, calibration_pass
from onespike.passes.statistics import Sample, samples
from onespike.spikes.code import row_gain


def typical_magnitude(groups: list[Sample], center: Tensor | None) -> Tensor | None:
    """Return the median over rows of mean |x − center|; of the nonzero rows if most are; None if all are zero."""
    rows = torch.cat([group.rows for group in groups]).float()
    sizes = (rows if center is None else rows - center).abs().mean(-1).flatten()
    middle = sizes.median()
    if not bool(middle > 0):
        middle = sizes[sizes > 0].median() if bool((sizes > 0).any()) else middle
    return middle if bool(middle > 0) else None


def sample_gain(threshold: SiteThreshold, group: Sample) -> Tensor:
    """Return the gain of each sampled row: of its position, and of its magnitude where that counts."""
    gain = torch.tensor(group.gain)
    if threshold.typical is None:
        return gain
    rows = group.rows if threshold.center is None else group.rows - threshold.center
    return gain * row_gain(rows, threshold.typical)


def shrunk(threshold: SiteThreshold, groups: list[Sample], percentile: float) -> float:
    """Return by how much the gains lower the top percentile of the values."""
    center = torch.zeros(()) if threshold.center is None else threshold.center
    sizes = torch.cat([(group.rows - center).abs().float().flatten() for group in groups])
    gains = torch.cat(
        [sample_gain(threshold, group).expand_as(group.rows).float().flatten() for group in groups]
    )
    rank = max(1, round(len(sizes) * (1 - percentile / 100)))
    before, after = (float(x.kthvalue(rank).values) for x in (sizes, sizes / gains))
    return after / before if before > 0 and after > 0 else 1.0


@calibration_pass("tokens", affine=True)
def tokens(state: PassState, context: PassContext) -> PassState:
    """Set gain_t = 2^round(log2 (m_t / median m)), m_t = mean_c |x_tc − center_c|, from ½ to 2¹⁴, at run time.

    In many networks a few tokens are hundreds of times as large as the others (massive activations): one step for all
    clips them or loses the others. The gain is a factor of the row that leaves the product, and needs no position.
    Thresholds follow: they keep their percentile, now among the values divided by their gains.
    """
    changes = {}
    for site, groups in samples(state, context).items():
        if site.operation == "linear":
            old = state.thresholds[site]
            typical = typical_magnitude(groups, old.center)
            if typical is not None:
                factor = shrunk(replace(old, typical=typical), groups, state.recipe.percentile)
                sides = {"positive": old.positive * factor, "negative": old.negative * factor}
                changes[site] = {"typical": typical, **sides}
    return state.with_sites(changes)
