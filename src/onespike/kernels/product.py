"""A linear map of spikes on integers: firing, exact 32-bit sums, scales and bias in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from onespike.kernels import native
from onespike.kernels.fire import OFF, limits, plain_is_needed
from onespike.kernels.form import Form, in_memory

COLUMNS = 16
"""Outputs that the C side multiplies together."""
COUNT = 2**15 - 1
"""The largest count: they are 16-bit numbers."""


def pack(weight: Tensor) -> Tensor:
    """8-bit weights [outputs, inputs] as 16-bit [panels, pairs of inputs, 16 outputs, 2], filled up with zeros.

    >>> pack(torch.ones(20, 5, dtype=torch.int8)).shape
    torch.Size([2, 3, 16, 2])
    """
    outputs, inputs = weight.shape
    whole = F.pad(weight.to(torch.int16), (0, inputs % 2, 0, -outputs % COLUMNS))
    return whole.view(-1, COLUMNS, whole.shape[1] // 2, 2).transpose(1, 2).contiguous()


def fire_product(
    x: Tensor,
    sides: tuple[Tensor | None, Tensor | None],
    form: Callable[[], Form | None],
    times: tuple[int, int],
    packed: Tensor,
    scale: Tensor,
    bias: Tensor | None,
) -> Tensor | None:
    """unit·scale·(counts·W) + bias, [rows, inputs] → [rows, outputs]; None where the plain form must run.

    A count of one side is taken that many `times`, so that all are counts of one unit: the step over its `times`.

    Args:
        x: float32 activations.
        sides: the steps, single numbers; None for a side that is off.
        form: how a magnitude becomes a count; asked for only if the kernel runs. None if it cannot say.
        times: small integers in the ratio of the steps.
        packed: weights as `pack` lays them.
        scale: one for each output.
        bias: likewise, or None.
    """
    if plain_is_needed(x, bias) or x.device.type != "cpu" or x.dtype != torch.float32:
        return None
    kernels, how = native.library(), form()
    if kernels is None or how is None:
        return None
    x = x.contiguous()
    out = x.new_empty(len(x), len(scale))
    up, down = (OFF if side is None else side for side in sides)
    refused = kernels.onespike_product(
        x.data_ptr(), out.data_ptr(), len(x), x.shape[1], len(scale), packed.data_ptr(), scale.data_ptr(),
        None if bias is None else bias.data_ptr(), up.data_ptr(), down.data_ptr(), *limits(*sides), *times,
        ctypes.addressof(in_memory(how)), torch.get_num_threads(),
    )  # fmt: skip
    return None if refused else out
