"""Axes of an operand that may have separate constants and steps, so that the product stays a sum of spikes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from onespike.calibration.thresholds import SiteThreshold


@dataclass(frozen=True)
class Axes:
    """The axes of one operand, counted from the back, in ascending order."""

    center: tuple[int, ...] = ()
    """Axes along which a constant may differ: its product stays a constant, or one row."""
    step: tuple[int, ...] = ()
    """Axes along which a step may differ and still be folded into the other operand or the result."""
    position: int | None = None
    """The axis of tokens, along which steps may differ by powers of two."""


def axes(threshold: SiteThreshold, drives: SiteThreshold | None) -> Axes:
    """Return the axes of a site; `drives` is the first operand of the same product, the site itself included.

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
    if drives is not None and drives.role == "softmax":
        return Axes((*heads, -1), (*heads, -1), -2)
    return Axes((*heads, -2), heads, -1)


def reduced(x: Tensor, axes: tuple[int, ...], how: str = "sum") -> Tensor:
    """Return the sum or mean of x over all axes but these, which stay in place; the batch axis goes.

    >>> import torch
    >>> reduced(torch.ones(2, 3, 4), (-1,)).shape, reduced(torch.ones(2, 3, 4, 5), (-3, -1)).shape
    (torch.Size([1, 4]), torch.Size([3, 1, 5]))
    """
    others = [axis for axis in range(-x.dim(), 0) if axis not in axes]
    total: Tensor = getattr(x, how)(others, keepdim=True)
    return total.squeeze(0)
