"""Attention with firing probabilities in one call: it needs no memory for them and stays in the cache.

Used in eager inference, and as a custom operator under `torch.compile`, on processors that the C kernel
supports. Sums and exponentials round differently from torch's, as those of torch's fused attention do: a probability
within their error of a threshold may fire the neighboring level.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onespike.kernels import build
from onespike.kernels.firing import may_be_opaque, plain_is_needed
from onespike.kernels.layout import form_of, pointer
from onespike.kernels.product import Path
from onespike.spikes import SpikeCode, fire_function


class _Operand(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("strides", ctypes.c_int64 * 4))


class _Attention(ctypes.Structure):
    _fields_ = (
        *((name, _Operand) for name in ("q", "k", "v", "mask", "out")),
        *((name, ctypes.c_int64) for name in ("heads", "rows", "keys", "inner", "outer")),
        ("step", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("by_head", "by_row")),
        ("form", ctypes.c_void_p),
    )


class Units(NamedTuple):
    """The values of counts of q, k and v. Tensors are float32 and contiguous."""

    factor: Tensor  # [heads], the value of one unit of a score
    v_gain: (
        Tensor | None
    )  # [keys], v's gains as whole multiples of the smallest: what multiplies the probabilities
    v_times: Tensor | None  # [keys], and what multiplies v's counts
    offset: Tensor | None  # [heads, inner], q without spikes, in whole numbers
    offset_factor: Tensor | None  # [heads], the value of one unit of it in a score
    v_unit: Tensor  # [heads, outer], the value of one unit of v
    v_offset: Tensor | None  # [heads, outer], v without spikes


class _Firing(ctypes.Structure):
    _names = ("up", "down", "times_up", "times_down", "center", "gain", "form")
    _fields_ = (*((name, ctypes.c_void_p) for name in _names), ("quick", ctypes.c_int64))


class _Integers(ctypes.Structure):
    _names = ("q_fires", "k_fires", "v_fires", *Units._fields)
    _fields_ = (*_Attention._fields_, *((name, ctypes.c_void_p) for name in _names), ("path", ctypes.c_int64))


def can_attend(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether `attend` takes these: [batch, heads, rows, inner], float32 on the CPU, and nothing watches."""
    operands = (query, key, value)
    if any(x.dim() != 4 or x.dtype != torch.float32 or x.device.type != "cpu" for x in operands):
        return False
    if not query.shape[:2] == key.shape[:2] == value.shape[:2] or 0 in (*query.shape, *value.shape):
        return False
    if torch.compiler.is_compiling():
        return build.is_fast() and may_be_opaque(*operands)
    return build.is_fast() and not plain_is_needed(*operands)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, step: Tensor, code: SpikeCode
) -> Tensor:
    """fire(softmax(query·key + mask))·value, in memory as [batch, rows, heads, outer].

    The query [batch, heads, rows, inner] is scaled, the key [batch, heads, inner, keys] transposed, the mask added to the
    scores. The step of the probabilities' neuron broadcasts to [heads, rows].
    """
    if torch.compiler.is_compiling():
        g, inside = code.function, code.inside
        result: Tensor = _attend_operator(query, key, value, mask, step, list(g.levels), g.rounding, inside)
        return result
    return _run("onespike_attend", _Attention, (query, key, value), mask, step, code)


def attend_integers(
    operands: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    path: Path,
    step: Tensor,
    code: SpikeCode,
    fires: Sequence[tuple[SpikeCode, tuple[Tensor, Tensor]]],
    units: Units,
) -> Tensor:
    """Compute the same for operands that fire, with exact products on 16-bit numbers.

    `fires` holds the code of q, k and v, and what counts of each sign are worth in units. Tensors of these codes are float32 and contiguous, [heads, depth], with 0 for a side that is off; gains per row or key.
    """
    firing = [
        _Firing(
            *map(pointer, (one.positive, one.negative, *times, one.center, one.gain)),
            ctypes.addressof(form_of(one.function, one.inside)),
        )
        for one, times in fires
    ]
    further = (*map(ctypes.addressof, firing), *map(pointer, units), path.number)
    return _run("onespike_attend_integers", _Integers, operands, mask, step, code, *further)


def _run(
    name: str, kind: Any, operands: tuple[Tensor, ...], mask: Tensor | None, step: Tensor, code: SpikeCode, *further: Any
) -> Tensor:  # fmt: skip
    query, key, value = operands
    (batch, heads, rows, inner), (keys, outer) = query.shape, value.shape[2:]
    out = query.new_empty(batch, rows, heads, outer).transpose(1, 2)
    where = None if mask is None else mask.float().expand(batch, heads, rows, keys)
    steps, form = step.expand(heads, rows), form_of(code.function, code.inside)
    call = kind(
        *map(_operand, (query, key.transpose(2, 3), value, where, out)), heads, rows, keys, inner, outer,
        steps.data_ptr(), *steps.stride(), ctypes.addressof(form), *further,
    )  # fmt: skip
    kernels = build.library()
    if kernels is None or getattr(kernels, name)(ctypes.addressof(call), batch, torch.get_num_threads()):
        raise MemoryError("attention: there is no memory left for a few rows of scores. Use smaller inputs.")
    return out


def _operand(x: Tensor | None) -> _Operand:
    return _Operand(None) if x is None else _Operand(x.data_ptr(), (ctypes.c_int64 * 4)(*x.stride()))


@torch.library.custom_op("onespike::attend", mutates_args=())
def _attend_operator(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    step: Tensor,
    levels: list[int],
    rounding: str,
    inside: bool,
) -> Tensor:
    """Run `attend` under a compiler, which sees one operation."""
    code = SpikeCode(step, None, fire_function(tuple(levels), rounding), inside=inside)
    return _run("onespike_attend", _Attention, (query, key, value), mask, step, code)


@_attend_operator.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
    batch, heads, rows = query.shape[:3]
    return query.new_empty(batch, rows, heads, value.shape[-1]).transpose(1, 2)
