"""Signed binary digits: how many an integer has in non-adjacent form, which has the fewest."""

from __future__ import annotations

import torch
from torch import Tensor


def naf_weight(count: Tensor) -> Tensor:
    """Return the nonzero digits of a non-negative integer in non-adjacent form: the ones of n XOR 3n.

    >>> naf_weight(torch.tensor([0, 1, 3, 7, 11, 263])).tolist()
    [0, 1, 2, 2, 3, 3]
    """
    bits = count.long() ^ (3 * count.long())
    ones = torch.zeros_like(bits)
    while bool((bits > 0).any()):
        ones += bits & 1
        bits = bits >> 1
    return ones


def naf_length(largest: int) -> int:
    """Return how many digits, zeros included, the integers up to `largest` need: the number of lanes.

    >>> [naf_length(n) for n in (1, 2, 3, 5, 7, 263)]
    [1, 2, 3, 3, 4, 9]
    """
    return (3 * largest).bit_length() - 1


def digits_of(counts: Tensor) -> Tensor:
    """Return `naf_weight` of each magnitude in a tensor of many counts, by a table.

    >>> digits_of(torch.tensor([[0.0, -1.0], [7.0, 11.0]])).tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    """
    sizes = counts.abs().to(torch.int32)
    table = naf_weight(torch.arange(int(sizes.max()) + 1 if sizes.numel() else 1))
    return table.float().to(sizes.device)[sizes]
