"""Positive and negative inputs against separate thresholds (eqs. 13, 14 and 38), before a neuron fires.

The callers convert x to float32. No `torch.where` on whole tensors: eager torch does not vectorize it, and signs are random, so one of
them costs as much as twenty of the operations below.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

HUGE = torch.finfo(torch.float32).max


def part(x: Tensor, threshold: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """Return the part of x of this sign as a magnitude, and a threshold above 0 to compare it with.

    Where a threshold with dimensions (one per channel) is 0, that channel is off: its magnitude is 0, which
    fires nothing in any neuron, and NaN·0 is still NaN.
    """
    size = (x * sign).clamp(min=0)
    if threshold.ndim == 0:
        return size, threshold
    on = threshold > 0
    return size.clamp(max=HUGE) * on.float(), torch.where(on, threshold, 1.0)


def magnitude(x: Tensor, positive: Tensor | None, negative: Tensor | None) -> Tensor:
    """Return |x| over the threshold of its sign, by true division; a side that is None gives 0.

    One of the two quotients is always 0, so their sum is exactly the other.

    >>> magnitude(torch.tensor([-3.0, 1.0]), torch.tensor(0.5), torch.tensor(2.0))
    tensor([1.5000, 2.0000])
    """
    quotients = [
        size / above
        for side, sign in ((positive, 1), (negative, -1))
        if side is not None
        for size, above in [part(x, side, sign)]
    ]
    return quotients[0] + quotients[1] if len(quotients) == 2 else quotients[0]


def with_sign(x: Tensor, count: Tensor, positive: Tensor | None, negative: Tensor | None) -> Tensor:
    """Return the count with the sign of x. A silent neuron gives +0 on both sides, as its integer spikes do."""
    if negative is None:
        return count
    # 0 − count instead of −count, which would be −0 for a silent neuron.
    return 0.0 - (count if positive is None else count * (-x).sign())


def by_side(
    x: Tensor, positive: Tensor | None, negative: Tensor | None, count: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return signed counts: `count(magnitude, threshold)` of the positive part less that of the negative.

    A side that is None is off. The arguments fix which sides are on, never the data, so
    the function traces.
    """
    up = None if positive is None else count(*part(x, positive, 1))
    down = None if negative is None else count(*part(x, negative, -1))
    if up is None:
        return x * 0 if down is None else 0.0 - down
    return up if down is None else up - down
