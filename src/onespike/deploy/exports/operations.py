"""What sites do, as operations with names, each with a definition of its own in the precision of its input.

row_gain  x → powers of two            where the rows of a site have steps by their own magnitude
fire      x → signed counts            the neuron of a site
decode    counts → values              where two activations meet, and in the float form everywhere
linear    counts → values              8-bit weights, exact sums, one scale for each output, bias
conv      counts → values              likewise
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onespike.spikes.code import COARSEST, FINEST, SpikeCode
from onespike.spikes.fire_functions import defined_by

ZERO = 128
"""The zero of 8-bit weights without a sign."""
POWERS = tuple(2.0**k for k in range(int(log2(FINEST)), int(log2(COARSEST)) + 1))
"""The gains that a row may have by its magnitude."""


@torch.library.custom_op("spikes::row_gain", mutates_args=())
def row_gain(x: Tensor, typical: Tensor, center: Tensor | None, gain: Tensor | None) -> Tensor:
    """gain·2^round(log2(mean|x − center| / typical)) for each row along the last axis, the power from ½ to 2¹⁴."""
    x = x if center is None else x - center.to(x)
    powers = torch.tensor(POWERS, dtype=x.dtype)
    ratio = x.abs().mean(-1, keepdim=True) * (2**0.5 / typical.to(x))
    power = powers[torch.bucketize(ratio.clamp(POWERS[0], POWERS[-1]), powers, right=True) - 1]
    return power if gain is None else power * gain.to(x)


@row_gain.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(*x.shape[:-1], 1)


@torch.library.custom_op("spikes::fire", mutates_args=())
def fire(
    x: Tensor, positive: Tensor, negative: Tensor, center: Tensor | None, gain: Tensor | None, sides: str,
    levels: Sequence[int], bounds: Sequence[float], site: str,
) -> Tensor:  # fmt: skip
    """±(the largest level whose bound is not above |x − center| / (gain·step±) + ½)."""
    x = x if center is None else x - center.to(x)
    x = x if gain is None else x / gain.to(x)
    up, down = None if sides == "negative" else positive, None if sides == "positive" else negative
    return SpikeCode(up, down, defined_by(tuple(levels), tuple(bounds))).fire_coordinate(x)


@fire.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("spikes::decode", mutates_args=())
def decode(
    counts: Tensor, positive: Tensor, negative: Tensor, gain: Tensor | None, offset: Tensor | None, sides: str,
    site: str,
) -> Tensor:  # fmt: skip
    """offset + gain·unit±·counts."""
    if sides == "both":
        value = positive.to(counts) * counts.clamp(min=0) - negative.to(counts) * (-counts).clamp(min=0)
    else:
        value = counts * (negative if sides == "negative" else positive).to(counts)
    value = value if gain is None else value * gain.to(counts)
    return value if offset is None else value + offset.to(counts)


@decode.register_fake
def _(counts: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(counts)


def _units(counts: Tensor, up: Tensor | None, down: Tensor | None, axis: int) -> Tensor:
    if up is None or down is None:
        return counts
    q, p = (times.view(-1, *[1] * (-axis - 1)) if times.numel() > 1 else times for times in (up, down))
    return counts.clamp(min=0) * q.to(counts) + counts.clamp(max=0) * p.to(counts)


def _whole(weight: Tensor) -> Tensor:
    """8-bit weights as whole numbers; unsigned ones have their zero at 128."""
    return weight.double() - (ZERO if weight.dtype == torch.uint8 else 0)


@torch.library.custom_op("spikes::linear", mutates_args=())
def linear(
    counts: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, up: Tensor | None, down: Tensor | None,
    gain: Tensor | None, most: int, signed: bool, site: str,
) -> Tensor:  # fmt: skip
    """gain·scale·(Ŵ·units) + bias, units = up·counts⁺ − down·counts⁻, at most `most`; the sum is exact."""
    sums = F.linear(_units(counts, up, down, -1).double(), _whole(weight))
    value = sums.to(counts) * scale.to(counts)
    value = value if gain is None else value * gain.to(counts)
    return value if bias is None else value + bias.to(counts)


@linear.register_fake
def _(counts: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return counts.new_empty(*counts.shape[:-1], weight.shape[0])


def _convolved(x: Tensor, weight: Tensor, geometry: tuple[Any, ...]) -> Tensor:
    function: Any = (F.conv1d, F.conv2d, F.conv3d)[weight.dim() - 3]
    result: Tensor = function(x, weight, None, *geometry)
    return result


@torch.library.custom_op("spikes::conv", mutates_args=())
def conv(
    counts: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, up: Tensor | None, down: Tensor | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int,
    most: int, signed: bool, site: str,
) -> Tensor:  # fmt: skip
    """scale·(Ŵ ∗ units) + bias, as `linear`; the bias may differ by place, where an offset meets the border."""
    axis = 1 - weight.dim()
    rows = (-1, *[1] * (-axis - 1))
    geometry = (stride, padding, dilation, groups)
    sums = _convolved(_units(counts, up, down, axis).double(), _whole(weight), geometry)
    value = sums.to(counts) * scale.to(counts).view(rows)
    return value if bias is None else value + (bias if bias.dim() > 1 else bias.view(rows)).to(counts)


@conv.register_fake
def _(
    counts: Tensor, weight: Tensor, scale: Tensor, bias: Any, up: Any, down: Any,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, *_: Any,
) -> Tensor:  # fmt: skip
    return _convolved(counts, weight.to(counts.dtype), (stride, padding, dilation, groups))
