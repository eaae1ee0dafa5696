"""The marks of a network as ONNX nodes: the fire function without bit casts, and products on bytes.

Every bound of G is a multiple of ⅛, so G(a) depends only on ⌊8a⌋, an exact integer: one table lookup of the
count, for any levels and rounding. No optimizer can change it by rounding differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from onespike.deploy.exports import operations
from onespike.spikes.fire_functions import TABLE, finest, fire_table

OPSET = 20
FLOAT, UINT8, INT32 = 1, 2, 6


def _op() -> Any:
    from onnxscript import opset20

    return opset20


def _constant(value: Any) -> Any:
    import onnx

    return _op().Constant(value=onnx.numpy_helper.from_array(np.asarray(value)))


def _number(value: float) -> Any:
    return _constant(np.float32(value))


def fired(a: Any, levels: Sequence[int], bounds: Sequence[float]) -> Any:
    """Return G(a): a table lookup, or for levels that reach too far one comparison each."""
    op = _op()
    if list(levels) == list(bounds) == list(range(1, len(levels) + 1)):
        return op.Min(op.Floor(a), _number(levels[-1]))
    if finest(bounds) * bounds[-1] <= TABLE:
        whole, table = fire_table(levels, bounds)
        a = a if whole == 1 else op.Mul(a, _number(whole))
        place = op.Cast(op.Min(a, _number(len(table) - 1)), to=INT32)
        return op.Gather(_constant(np.asarray(table, np.float32)), place)
    before, total = 0, _number(0)
    for level, bound in zip(levels, bounds, strict=True):
        passed = op.Cast(op.GreaterOrEqual(a, _number(bound)), to=FLOAT)
        total, before = op.Add(total, op.Mul(passed, _number(level - before))), level
    return total


def row_gain(x: Any, typical: Any, center: Any = None, gain: Any = None) -> Any:
    """`operations.row_gain`: one comparison for each power of two, since rows are few."""
    op = _op()
    x = x if center is None else op.Sub(x, center)
    mean = op.ReduceMean(op.Abs(x), _constant(np.asarray([-1], np.int64)), keepdims=1)
    ratio = op.Mul(mean, op.Div(_number(2**0.5), typical))
    found = _number(operations.POWERS[0])
    for before, power in pairwise(operations.POWERS):
        passed = op.Cast(op.GreaterOrEqual(ratio, _number(power)), to=FLOAT)
        found = op.Add(found, op.Mul(passed, _number(power - before)))
    return found if gain is None else op.Mul(found, gain)


def fire(
    x: Any, positive: Any, negative: Any, center: Any = None, gain: Any = None, sides: str = "even",
    levels: Sequence[int] = (), bounds: Sequence[float] = (), site: str = "",
) -> Any:  # fmt: skip
    """`operations.fire`."""
    op = _op()
    x = x if center is None else op.Sub(x, center)
    x = x if gain is None else op.Div(x, gain)
    if sides == "even":
        size = op.Div(op.Abs(x), positive)
    else:
        up, down = op.Div(op.Relu(x), positive), op.Div(op.Relu(op.Neg(x)), negative)
        size = {"positive": up, "negative": down}.get(sides) or op.Add(up, down)
    count = fired(op.Add(size, _number(0.5)), levels, bounds)
    if sides in ("positive", "negative"):
        return count if sides == "positive" else op.Neg(count)
    return op.Mul(count, op.Sign(x))


def decode(
    counts: Any, positive: Any, negative: Any, gain: Any = None, offset: Any = None, sides: str = "even",
    site: str = "",
) -> Any:  # fmt: skip
    """`operations.decode`."""
    op = _op()
    if sides == "both":
        value = op.Sub(op.Mul(op.Relu(counts), positive), op.Mul(op.Relu(op.Neg(counts)), negative))
    else:
        value = op.Mul(counts, negative if sides == "negative" else positive)
    value = value if gain is None else op.Mul(value, gain)
    return value if offset is None else op.Add(value, offset)


def _units(counts: Any, up: Any, down: Any, axis: int) -> Any:
    if up is None or down is None:
        return counts
    op = _op()
    shape = _constant(np.asarray((-1, *[1] * (-axis - 1)), np.int64))
    q, p = (op.Reshape(times, shape) for times in (up, down))
    return op.Sub(op.Mul(op.Relu(counts), q), op.Mul(op.Relu(op.Neg(counts)), p))


def _by_bytes(units: Any, most: int, signed: bool, multiply: Callable[[Any, Any], Any]) -> Any:
    """Return the exact sums of a product, from one byte of each operand if counts fit into one, else from two."""
    op = _op()
    if most <= (127 if signed else 255):
        zero = operations.ZERO if signed else 0
        shifted = op.Add(units, _number(zero)) if zero else units
        return multiply(op.Cast(shifted, to=UINT8), _constant(np.uint8(zero)))
    high = op.Floor(op.Mul(units, _number(1 / 256)))
    low = op.Sub(units, op.Mul(high, _number(256)))
    above = multiply(
        op.Cast(op.Add(high, _number(operations.ZERO)), to=UINT8), _constant(np.uint8(operations.ZERO))
    )
    below = multiply(op.Cast(low, to=UINT8), _constant(np.uint8(0)))
    return op.Add(op.Mul(above, _constant(np.int32(256))), below)


def linear(
    counts: Any, weight: Any, scale: Any, bias: Any = None, up: Any = None, down: Any = None, gain: Any = None,
    most: int = 0, signed: bool = True, site: str = "",
) -> Any:  # fmt: skip
    """`operations.linear` by MatMulInteger. Both operands are unsigned: of other pairs some processors saturate sums."""
    op = _op()
    columns, zero = op.Transpose(weight, perm=[1, 0]), _constant(np.uint8(operations.ZERO))
    units = _units(counts, up, down, -1)
    sums = _by_bytes(units, most, signed, lambda x, at: op.MatMulInteger(x, columns, at, zero))
    value = op.Mul(op.Cast(sums, to=FLOAT), scale)
    value = value if gain is None else op.Mul(value, gain)
    return value if bias is None else op.Add(value, bias)


def conv(
    counts: Any, weight: Any, scale: Any, bias: Any = None, up: Any = None, down: Any = None,
    stride: Sequence[int] = (), padding: Sequence[int] = (), dilation: Sequence[int] = (), groups: int = 1,
    most: int = 0, signed: bool = True, site: str = "",
) -> Any:  # fmt: skip
    """`operations.conv` by ConvInteger."""
    op, dims = _op(), len(stride)
    zero, shape = _constant(np.uint8(operations.ZERO)), _constant(np.asarray((-1, *[1] * dims), np.int64))
    units = _units(counts, up, down, -1 - dims)

    def multiply(x: Any, at: Any) -> Any:
        return op.ConvInteger(
            x,
            weight,
            at,
            zero,
            group=groups,
            strides=[*stride],
            dilations=[*dilation],
            pads=[*padding, *padding],
        )

    value = op.Mul(op.Cast(_by_bytes(units, most, signed, multiply), to=FLOAT), op.Reshape(scale, shape))
    if bias is None:
        return value
    return op.Add(value, op.Reshape(bias, shape) if len(bias.shape) == 1 else bias)


def translations() -> dict[Any, Any]:
    """Return mark → the function that writes its nodes."""
    import torch

    spikes = torch.ops.spikes
    return {
        spikes.row_gain.default: row_gain,
        spikes.fire.default: fire,
        spikes.decode.default: decode,
        spikes.linear.default: linear,
        spikes.conv.default: conv,
    }
