"""Axes of an operand that may have separate constants and steps, so that the product stays a sum of spikes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from onespike.calibration.thresholds import SiteThreshold


class Axes(NamedTuple):
    """The axes of one operand, counted from the back, in ascending order."""

    center: tuple[int, ...] = ()  # where a constant may differ: its product stays a constant, or one row
    step: tuple[
        int, ...
    ] = ()  # where a step may differ and still be folded into the other operand or the result
    position: int | None = None  # that of tokens, where steps may differ by powers of two


def axes(threshold: SiteThreshold, first: SiteThreshold) -> Axes:
    """Return the axes of a site; `first` is the first operand of the same product, or the site itself.

    x·Wᵀ folds a step per channel into W. In q·kᵀ a step can be folded only per head; in A·v the step of a
    channel of v scales the result.
    """
    site, dims = threshold.site, len(threshold.shape)
    heads = (-3,) if dims > 3 else ()
    if site.operation == "linear":
        return Axes((-1,), (-1,), -2 if dims > 2 else None)
    if site.operation == "conv":
        return Axes((1 - dims,), (1 - dims,)) if dims > 2 else Axes()
    if site.operation != "matmul" or dims < 3:
        return Axes()
    if threshold.role == "softmax":
        return Axes((), heads, -2)
    if site.role == "lhs":
        return Axes((*heads, -1), heads, -2)
    if first.role == "softmax":
        return Axes((*heads, -1), (*heads, -1), -2)
    return Axes((*heads, -2), heads, -1)


def reduced(x: Tensor, axes: tuple[int, ...], how: str = "sum") -> Tensor:
    """Return the sum or mean of x over all axes but these, which stay in place; the batch axis goes.

    >>> import torch
    >>> reduced(torch.ones(2, 3, 4), (-1,)).shape, reduced(torch.ones(2, 3, 4, 5), (-3, -1)).shape
    (torch.Size([1, 4]), torch.Size([3, 1, 5]))
    """
    others = [axis for axis in range(-x.dim(), 0) if axis not in axes]
    result: Tensor = getattr(x, how)(others, keepdim=True)
    return result.squeeze(0)
