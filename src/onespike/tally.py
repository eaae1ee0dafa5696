"""How many spikes a tensor of counts holds, and what they add in each column of the ledger."""

from __future__ import annotations

import math
from functools import cache, lru_cache

import torch
from torch import Tensor

from onespike import kernels


def naf_weight(count: Tensor) -> Tensor:
    """Non-zero digits of a non-negative integer in non-adjacent form: the ones of n XOR 3n.

    >>> naf_weight(torch.tensor([0, 1, 3, 7, 11, 263])).tolist()
    [0, 1, 2, 2, 3, 3]
    """
    bits = count.long() ^ (3 * count.long())
    ones = torch.zeros_like(bits)
    while bool((bits > 0).any()):
        ones += bits & 1
        bits = bits >> 1
    return ones


@cache
def _worth(largest: int) -> Tensor:
    """What a spike of size 0, 1, … adds to counts, nonzero and binary, and to the saturated ones."""
    size = torch.arange(largest + 1)
    return torch.stack((size, size > 0, naf_weight(size), size == largest)).double()


def totals(largest: int, fired: Tensor, weights: Tensor | None = None) -> list[float]:
    """Sums of `_worth` over all spikes, each with its weight."""
    if weights is None:
        flat = kernels.in_memory_order(fired)
        whole = flat.device.type != "cpu" or len(flat) <= kernels.PART
        parts = (flat,) if whole else flat.split(kernels.PART)  # each in the cache
        counted = [torch.bincount(part.abs().to(torch.int32), minlength=largest + 1) for part in parts]
        number = counted[0] if whole else torch.stack(counted).sum(0)
    else:
        size, each = fired.abs().to(torch.int32).flatten(), weights.double().expand_as(fired).flatten()
        number = torch.bincount(size, each, minlength=largest + 1)
    # no matrix product: the integer form counts where the network's own products are still looked for
    sums: list[float] = (_worth(largest) * number.double().cpu()).sum(1).tolist()
    return sums


@lru_cache(maxsize=1024)
def _rows(shape: tuple[int, ...], every: int) -> tuple[Tensor, ...]:
    """Indices of one row in `every`, drawn at random and always alike."""
    rows = math.prod(shape)
    with torch.inference_mode(False):  # kept, and then used in any mode
        chosen = torch.randperm(rows, generator=torch.Generator().manual_seed(0))[: rows // every]
        return torch.unravel_index(chosen.sort().values, shape)


def sample(x: Tensor, every: int) -> Tensor:
    """The elements of one row (along the last dimension) in `every`; all of a tensor with few rows.

    >>> sample(torch.zeros(160, 1000), 16).shape, sample(torch.zeros(10, 10), 16).shape
    (torch.Size([10000]), torch.Size([100]))
    """
    few = math.prod(x.shape[:-1]) < every
    return x.flatten() if few else x[_rows(x.shape[:-1], every)].flatten()
