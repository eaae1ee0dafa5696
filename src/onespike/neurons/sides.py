"""Positive and negative inputs to their own thresholds (eqs. 13, 14 and 38), before any neuron fires."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

HUGE = torch.finfo(torch.float32).max


def by_side(
    x: Tensor, positive: Tensor | None, negative: Tensor | None, count: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Signed float32 counts: `count(|x|, threshold)` with the threshold of x's sign, negated where x < 0.

    A side that is None is off: its inputs count as 0. Which sides are on is fixed by the arguments and
    never by the data, so the function traces. Thresholds with dimensions (one a channel) may hold zeros,
    which switch off that channel's side.

    >>> x = torch.tensor([-2.0, 0.5, 3.0])
    >>> by_side(x, torch.tensor(1.0), torch.tensor(2.0), lambda size, threshold: (size / threshold).floor())
    tensor([-1.,  0.,  3.])
    """
    x = x.float()
    if positive is not None and negative is not None:
        threshold, size = torch.where(x < 0, negative, positive), x.abs()
    elif positive is not None:
        threshold, size = positive, x.clamp(min=0)
    elif negative is not None:
        threshold, size = negative, (-x).clamp(min=0)
    else:
        return x * 0
    if any(side is not None and side.ndim for side in (positive, negative)):
        on = threshold > 0
        # Silence the input rather than the result: 0 fires nothing in any neuron, and NaN·0 is NaN still.
        size = size.clamp(max=HUGE) * on
        threshold = torch.where(on, threshold, 1.0)
    result = count(size, threshold)
    if negative is None:
        return result
    # 0 − count and not −count: a silent neuron returns +0, as its integer spikes do.
    return 0.0 - result if positive is None else torch.where(x < 0, 0.0 - result, result)


def as_side(threshold: Tensor | float) -> Tensor | None:
    """A threshold for `by_side`: a number 0 is a side that is off."""
    if isinstance(threshold, Tensor):
        return threshold.float()
    return torch.tensor(float(threshold)) if threshold else None
