"""Bit patterns of activations counted in one pass, for the histogram observers."""

from __future__ import annotations

import torch
from torch import Tensor

from onespike.kernels import native


def count_(counts: Tensor, x: Tensor, shift: int, lowest: int) -> bool:
    """Add x to `counts` (positive and negative × bins, int64) and return True; False where the plain form must do it.

    The bin of an element is the bits of its magnitude from `shift` on, less `lowest` − 1, held within the bins.

    >>> counts = torch.zeros(2, 4, dtype=torch.int64)
    >>> if count_(counts, torch.tensor([1.0, 1.5, -2.0, 0.0]), 23, 127): counts.tolist()
    [[1, 2, 0, 0], [0, 0, 1, 0]]
    """
    kernels = native.library()
    if kernels is None or type(x) is not Tensor or x.device.type != "cpu" or x.dtype != torch.float32:
        return False
    x = x.contiguous()
    kernels.onespike_count(x.data_ptr(), x.numel(), shift, lowest, counts.shape[-1], counts.data_ptr())
    return True
