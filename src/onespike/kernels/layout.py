"""What the C side reads: G of a spike code in numbers, and how it walks through an activation and its constants."""

import ctypes
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onespike.spikes import SpikeCode
from onespike.spikes.code import HUGE
from onespike.spikes.fire_functions import HALF, TABLE, FireFunction, finest, fire_table

SHORT = 16  # elements below which a piece is copied first
DIMS = 6  # the largest number of axes on the C side, once contiguous ones are joined
OFF = torch.zeros(())  # the step of a side that is off
PLANS = 16  # the number of shapes that a neuron remembers


class Form(ctypes.Structure):
    """The C side's `Form`: a closed form (M, offset, carry, top), and the jumps beyond it, also as a table."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("jumps", "inside", "carry")),
        *((name, ctypes.c_float) for name in ("dense", "offset", "top")),
        *((name, ctypes.POINTER(ctypes.c_float)) for name in ("bound", "rise", "table")),
        *((name, ctypes.c_float) for name in ("whole", "last")),
    )


def _array(numbers: Sequence[float]) -> Any:
    return (ctypes.c_float * len(numbers))(*numbers)


@lru_cache(maxsize=1024)
def form_of(function: FireFunction, inside: bool = False) -> Form:
    """Return G where C can read it; it stays there as long as this is cached or held."""
    levels, bounds = function.levels, function.bounds
    if function.pattern is not None:
        dense, tail = function.pattern
        offset, carry = (dense - 0.5, HALF) if function.rounding == "nearest" else (dense - 1, 0)
        return Form(0, inside, carry, dense, offset, 2.0**tail)
    # the first levels are mostly those of a closed form, ⌊a⌋, and few values reach further
    pairs = enumerate(zip(levels, bounds, strict=True))
    dense = next((k for k, pair in pairs if pair != (k + 1, k + 1)), len(levels))
    rise = [high - low for low, high in pairwise((dense, *levels[dense:]))]
    form = Form(len(rise), inside, 0, dense, 0, 1, _array(bounds[dense:]), _array(rise))
    if finest(bounds) * bounds[-1] <= TABLE:
        whole, table = fire_table(levels, bounds)
        form.table, form.whole, form.last = _array(table), whole, len(table) - 1
    return form


class _Axes(ctypes.Array[ctypes.c_int64]):
    _type_, _length_ = ctypes.c_int64, DIMS


class _Fire(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("dims", "numel")),
        *((name, _Axes) for name in ("size", "apart")),
        *((name, ctypes.c_void_p) for name in ("scale", "gain")),
        ("by_row", _Axes),
        ("constant", ctypes.c_void_p * 4),
        ("by", _Axes * 4),
        ("form", ctypes.c_void_p),
        *((name, ctypes.c_float) for name in ("most_up", "most_down")),
    )


class Plan(NamedTuple):
    """One way through one shape, for the tensors of one code at their addresses. It keeps what it points to alive."""

    code: SpikeCode
    places: tuple[int, ...]
    call: Any
    address: int
    copied: bool  # the input is copied into the result first


def addresses(code: SpikeCode) -> tuple[int, ...]:
    tensors = (code.positive, code.negative, code.scale, code.center, code.gain, code.offset)
    return tuple([0 if x is None else x.data_ptr() for x in tensors])


def limits(positive: Tensor | None, negative: Tensor | None) -> tuple[float, float]:
    """Return the bounds of magnitudes: infinity is limited for steps with dimensions, and for a side that is off."""
    up, down = (math.inf if side is not None and side.dim() == 0 else HUGE for side in (positive, negative))
    return up, down


def plan(x: Tensor, out: Tensor, code: SpikeCode, most: tuple[float, float]) -> Plan | None:
    """Return the way through x, with a dense result; None if a constant does not fit it, or gains differ within a run."""
    tensors = (code.positive, code.negative, code.center, code.offset)
    try:
        strides = [(0,) * x.dim() if c is None else c.expand(x.shape).stride() for c in (*tensors, code.gain)]
    except RuntimeError:  # it broadcasts the input to its shape
        return None
    order = sorted((d for d in range(x.dim()) if x.shape[d] != 1), key=out.stride, reverse=True)

    def runs_from(source: Tensor) -> list[Axis]:
        walks = (source.stride(), *strides)
        return _joined([(x.shape[d], tuple(walk[d] for walk in walks)) for d in order])

    runs = runs_from(x)
    copied = x.stride() != out.stride() and (runs[-1][1][0] != 1 or runs[-1][0] < SHORT)
    runs = runs_from(out) if copied else runs
    if len(runs) > DIMS or runs[-1][1][-1]:
        return None
    apart, *by, by_row = (_Axes(*walk) for walk in zip(*(steps for _, steps in runs), strict=True))
    form = form_of(code.function, code.inside)
    call = _Fire(
        len(runs), x.numel(), _Axes(*(size for size, _ in runs)), apart, pointer(code.scale), pointer(code.gain), by_row,
        (ctypes.c_void_p * 4)(*map(pointer, tensors)), (_Axes * 4)(*by), ctypes.addressof(form), *most,
    )  # fmt: skip
    call.held = form
    return Plan(code, addresses(code), call, ctypes.addressof(call), copied)


Axis = tuple[int, tuple[int, ...]]  # the size of an axis, and how far apart its elements lie in each tensor


def _joined(axes: list[Axis]) -> list[Axis]:
    """Join the axes that every tensor passes through as one; a single number has one axis.

    >>> _joined([(2, (12, 0)), (3, (4, 0)), (4, (1, 1))])
    [(6, (4, 0)), (4, (1, 1))]
    """
    joined: list[Axis] = []
    for size, steps in axes:
        before, last = joined[-1] if joined else (1, ())
        if joined and all(far == near * size for far, near in zip(last, steps, strict=True)):
            joined[-1] = (before * size, steps)
        else:
            joined.append((size, steps))
    return joined or [(1, (1, 0, 0, 0, 0, 0))]


def pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
