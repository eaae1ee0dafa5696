"""Streaming statistics of one site: `update(x)` per batch, then its thresholds.

Counts of bit patterns are sums of integers, so any order and any split of the stream gives the same result.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onespike.kernels import PART, count_, in_memory_order

LOWEST_EXPONENT, HIGHEST_EXPONENT = -30, 21
"""Magnitudes below 2**-30 count as zero; those from 2**21 on share one bin, which reports the exact maximum."""


class Histogram:
    """Counts of activations by sign, exponent and leading mantissa bits; memory is fixed from the first batch.

    A quantile is a true order statistic of the stream up to a relative error of 2**-(mantissa_bits + 1): 0.1 % at
    9 bits, 3.1 % at the 4 bits of a histogram of each channel, whose axis is negative.
    """

    def __init__(self, axis: int | None = None) -> None:
        self.axis, self.mantissa_bits = axis, 9 if axis is None else 4
        self.bins = ((HIGHEST_EXPONENT - LOWEST_EXPONENT) << self.mantissa_bits) + 2
        self.lowest = (127 + LOWEST_EXPONENT) << self.mantissa_bits  # the bits at which bin 1 begins
        # channels × (positive, negative) × bins; before the first batch one channel stands for all
        self.counts = torch.zeros(1, 2, self.bins, dtype=torch.int64)
        self.maximum, self.minimum = torch.tensor([-torch.inf]), torch.tensor([torch.inf])

    @property
    def empty(self) -> bool:
        return bool(self.maximum[0] < self.minimum[0])

    def update(self, x: Tensor) -> None:
        x = x.detach()
        x = in_memory_order(x)[None] if self.axis is None else x.movedim(self.axis, 0).flatten(1)
        counts = self.counts.to(x.device).expand(len(x), -1, -1).contiguous()
        # in parts that fit a processor's cache: faster, and without a second copy of a large activation
        for part in x.split(max(1, PART // len(x)), dim=1):
            part = part.float()
            if self.axis is not None or not count_(counts[0], part, 23 - self.mantissa_bits, self.lowest):
                counts += self._count(part)
        # without a dimension it is vectorized: a tenth of the time
        low, high = x.aminmax(dim=1) if len(x) > 1 else (extreme[None] for extreme in x.aminmax())
        self.counts = counts
        self.maximum = self.maximum.to(x.device).maximum(high.float())
        self.minimum = self.minimum.to(x.device).minimum(low.float())

    def merge(self, other: Histogram) -> None:
        self.counts = self.counts + other.counts
        self.maximum = self.maximum.maximum(other.maximum)
        self.minimum = self.minimum.minimum(other.minimum)

    def _count(self, x: Tensor) -> Tensor:
        bits = x.contiguous().view(torch.int32)
        index = (bits & 0x7FFFFFFF) >> (23 - self.mantissa_bits)
        index.sub_(self.lowest - 1).clamp_(0, self.bins - 1)
        index -= (bits >> 31) * self.bins  # −1 where the sign bit is set
        if len(x) > 1:
            index += torch.arange(len(x), device=x.device, dtype=torch.int32)[:, None] * (2 * self.bins)
        return torch.bincount(index.flatten(), minlength=len(x) * 2 * self.bins).view(len(x), 2, self.bins)

    def quantile(self, percentile: float, side: int, domain: str = "all") -> Tensor:
        """Return the magnitude at the top `percentile` % of the positive (+1) or negative (−1) side; 0 if it is empty."""
        extreme = (self.maximum if side > 0 else -self.minimum).clamp_min(0)
        if percentile == 0:
            return extreme
        one_side = self.counts[:, 0 if side > 0 else 1]
        total = one_side[:, 1:].sum(1) if domain == "sided" else self.counts.sum((1, 2))
        # inverted_cdf: the element of rank ceil(q·n); `beyond` elements are larger
        ranks = [math.ceil(int(n) * ((100.0 - percentile) / 100.0) - 1e-9) for n in total]
        beyond = total - torch.tensor(ranks, device=total.device)
        position = self.bins - 1 - (one_side.flip(1).cumsum(1) <= beyond[:, None]).sum(1)
        shift = 23 - self.mantissa_bits  # the value is the middle of its bin
        bits = ((position.clamp_min(1) + self.lowest - 1) << shift) + (1 << (shift - 1))
        middle = bits.to(torch.int32).view(torch.float32).minimum(extreme)
        value = torch.where(position == self.bins - 1, extreme, middle)
        return torch.where(position >= 1, value, torch.zeros_like(value))
