"""Binary lanes: an integer spike as signed binary digits, each a 0/±1 spike on the lane of its power of two.

The product of a layer is linear, so W·y = Σ_k 2^k·(W·d_k) for the digits d_k of y: lane k adds or subtracts
weights, and its sum is shifted by k. In fixed-point arithmetic both sides are the same integer.
"""

from __future__ import annotations

import torch
from torch import Tensor


def naf_weight(counts: Tensor) -> Tensor:
    """Return how many nonzero digits each magnitude n has in non-adjacent form, the fewest: where n and 3n differ.

    >>> naf_weight(torch.tensor([0.0, -1.0, 3.0, 7.0, 11.0, 263.0])).tolist()
    [0.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    """
    sizes = counts.abs().to(torch.int32)
    every = torch.arange(int(sizes.max()) + 1 if sizes.numel() else 1)
    differing = every ^ 3 * every
    table = sum((differing >> k & 1 for k in range(int(3 * every[-1]).bit_length())), torch.zeros_like(every))
    return table.float().to(sizes.device)[sizes]


def naf_length(largest: int) -> int:
    """Return how many digits, zeros included, the integers up to `largest` need: the number of lanes.

    >>> [naf_length(n) for n in (1, 2, 3, 5, 7, 263)]
    [1, 2, 3, 3, 4, 9]
    """
    return (3 * largest).bit_length() - 1
