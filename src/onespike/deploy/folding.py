"""Folding: a site's code goes into the weights behind it, so that only small integers are left to multiply.

    W·o + b = gain · s·(Ŵ·y) + (b + W·offset),   s·Ŵ ≈ W·diag(unit)

The unit of each input channel goes into the weight before it is rounded to 8 bits, with one scale per output; the
offset goes into the bias; the gain is a factor of each row. Counts of both signs are brought to one unit: where
unit⁻ / unit⁺ is near p/q for small integers, q·y⁺ − p·y⁻ counts units of unit⁺/q. Elsewhere counts of each sign
are multiplied separately, as two populations with separate weights.
"""

from itertools import product
from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from onespike.conversion.weights import along, by_rows, quantize
from onespike.spikes import SpikeCode
from onespike.spikes.code import SUM_SHIFTS

LARGEST_TERM, LARGEST_BESIDE_ONE = 15, 31
"""p and q up to `LARGEST_TERM` are tried, and beside 1 up to `LARGEST_BESIDE_ONE`: with λ = ¼ nearly all counts then stay in a byte."""
LARGEST_MOVE = 1 / 16
"""How far the negative step may move, relatively, to be in such a ratio. Any ratio from 1/32 to 32 is that near one."""

_PAIRS = product(range(1, LARGEST_BESIDE_ONE + 1), repeat=2)
_RATIOS = [(q, p) for q, p in _PAIRS if gcd(p, q) == 1 and (max(p, q) <= LARGEST_TERM or min(p, q) == 1)]
RATIOS = torch.tensor(sorted(_RATIOS, key=lambda pair: (max(pair), pair)), dtype=torch.float64)


def rounded(weight: Tensor) -> Tensor:
    """Return what the 8-bit weights stand for."""
    integers, scale = quantize(weight)
    return integers * by_rows(scale, weight)


def common_units(positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return (q, p) with p/q ≈ negative/positive per channel, or None if one has none; 1 and 1 for one side alone.

    >>> up, down = torch.tensor([1.0, 0.3, 1.0]), torch.tensor([0.76, 0.0, 1.0])
    >>> common_units(up, down)
    (tensor([4., 1., 1.]), tensor([3., 1., 1.]))
    >>> common_units(torch.tensor([1.0]), torch.tensor([0.001]))
    """
    ratio = torch.where((positive > 0) & (negative > 0), negative.double() / positive.double(), 1.0)
    distance = (RATIOS[:, 1] / RATIOS[:, 0] / ratio[:, None] - 1).abs()
    near = distance <= LARGEST_MOVE
    if not bool(near.any(1).all()):
        return None
    # of those with the smallest integers, the nearest
    size = torch.where(near, RATIOS.amax(1), torch.inf)
    chosen = torch.where(size == size.amin(1, keepdim=True), distance, torch.inf).argmin(1)
    return RATIOS[chosen, 0].float(), RATIOS[chosen, 1].float()


def flat(x: Tensor, axis: int) -> Tensor:
    """Return one number per channel on this axis from the back, or one in all; none if it differs along another."""
    fits = x.numel() == 1 or (x.dim() >= -axis and x.shape[axis] == x.numel())
    return x.detach().reshape(-1).contiguous() if fits else x.new_empty(0)


def by_channel(code: SpikeCode, channels: int, axis: int) -> SpikeCode | None:
    """Return the code of an operand whose channels are on this axis, from the back; None if it differs along another.

    Steps have their scale, and 0 for a side that is off. Steps, center and offset are one per channel, or one in all;
    gains one per row, or one in all.
    """
    up, down = (flat(unit, axis) for unit in code.units())
    center, offset = (None if x is None else flat(x, axis) for x in (code.center, code.offset))
    gain = None if code.gain is None else flat(code.gain, -2)
    parts = [part for part in (up, down, center, offset) if part is not None]
    if any(len(part) not in (1, channels) for part in parts):
        return None
    if gain is not None and (len(gain) == 0 or (axis != -1 and len(gain) > 1)):
        return None
    return code._replace(positive=up, negative=down, scale=None, center=center, offset=offset, gain=gain)


class Folded(NamedTuple):
    """A weight with a code folded into it: 8-bit integers and a scale per output."""

    weight: Tensor
    scale: Tensor
    rounded: Tensor
    """The weight after rounding, in place of the original: integer · scale / unit."""
    times: tuple[Tensor, Tensor]
    """The value of counts of each sign in units, like the steps; 0 for a sign that is left out."""
    largest: int
    """The largest sum for counts ±1."""


def fold(weight: Tensor, code: SpikeCode, groups: int = 1, digits: int = SUM_SHIFTS) -> list[Folded]:
    """Fold a code `by_channel` into a weight [outputs, inputs of a group, …] for counts of one unit, or one per sign.

    Scales are sums of so many powers of two: sums are scaled by shifting and adding. 0 keeps weights that are rounded already.
    """
    up, down = code.units()
    times = common_units(up, down)
    if times is None:
        one, none = torch.ones_like(up), torch.zeros_like(up)
        sides = ((up, (one, none)), (down, (none, one)))
        return [_folded(weight, unit, times, groups, digits) for unit, times in sides]
    unit = torch.where(up > 0, up / times[0], down / times[1])
    return [_folded(weight, unit, times, groups, digits)]


def _folded(weight: Tensor, unit: Tensor, times: tuple[Tensor, Tensor], groups: int, digits: int) -> Folded:
    exact, units = weight.detach().double(), along(unit, weight, groups)
    integers, scale = quantize(exact * units, digits)
    whole = integers.double() * by_rows(scale, weight)
    replaced = torch.where(units > 0, whole / torch.where(units > 0, units, 1.0), exact)
    largest = int(integers.int().abs().flatten(1).sum(1).max())
    return Folded(integers, scale.float(), replaced.float(), times, largest)


def shift(weight: Tensor, code: SpikeCode, groups: int = 1) -> Tensor | None:
    """Return Σ weight·offset over the inputs, in double: [outputs, …] with the kernel's places; None without an offset."""
    if code.offset is None:
        return None
    return (weight.detach().double() * along(code.offset, weight, groups)).sum(1)
