"""Calibration statistics of an activation, in one pass over memory: bit patterns, and sums of values and squares."""

import ctypes

import torch
from torch import Tensor

from onespike.kernels import build

PART = 1 << 18
"""Elements that torch processes together without a kernel: few enough for a cache, and for their copies."""


def in_memory_order(x: Tensor) -> Tensor:
    """Return all elements in one dimension, in any order: a view, where they are contiguous."""
    return x.permute(sorted(range(x.dim()), key=x.stride().__getitem__, reverse=True)).reshape(-1)


def moments(x: Tensor) -> tuple[float, float]:
    """Return the sum of all elements and of their squares, in double precision."""
    x = in_memory_order(x)
    if (kernels := _library(x)) is not None:
        sums = (ctypes.c_double * 2)()
        kernels.onespike_moments(x.data_ptr(), x.numel(), sums)
        return sums[0], sums[1]
    total = square = 0.0
    for part in x.split(PART) if x.device.type == "cpu" else (x,):
        wide = part.double()
        total, square = total + float(wide.sum()), square + float(wide.dot(wide))
    return total, square


def _library(x: Tensor) -> ctypes.CDLL | None:
    plain = type(x) is not Tensor or x.device.type != "cpu" or x.dtype != torch.float32
    return None if plain else build.library()


def count_(counts: Tensor, x: Tensor, shift: int, lowest: int) -> bool:
    """Add x to `counts` (positive and negative × bins, int64) and return True; False if the plain form must do it.

    The bin of an element is the bits of its magnitude from `shift` on, less `lowest` − 1, clamped to the bins.
    """
    kernels = _library(x)
    if kernels is None:
        return False
    x = x.contiguous()
    kernels.onespike_count(x.data_ptr(), x.numel(), shift, lowest, counts.shape[-1], counts.data_ptr())
    return True
