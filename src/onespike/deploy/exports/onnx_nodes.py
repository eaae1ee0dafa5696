"""Nodes of ONNX for operations that are not written from their definitions: sums of products multiply bytes.

It needs onnxscript: formats import it when they write.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import product as product_of
from math import prod
from typing import Any

import numpy as np
import onnx
import torch
from onnxscript import opset20

from onespike.deploy.exports.byte_graph import EIGHT_BITS, SEVEN_BITS
from onespike.deploy.exports.operations import BEFORE
from onespike.deploy.products import EXACT

op: Any = opset20
BASE = 128
"""The base of counts of several digits."""
FLOAT, INT8, INT32 = 1, 3, 6


def constant(value: Any) -> Any:
    return op.Constant(value=onnx.numpy_helper.from_array(np.asarray(value)))


def _along(scale: Any, x: Any) -> tuple[Any, int, tuple[int, ...]]:
    """Return a scale that differs along one axis at most, that axis, and its size as a shape."""
    if scale is None:
        return constant(np.float32(1)), 1, ()
    sizes = list(scale.shape)
    size = tuple(extent for extent in sizes if extent > 1)
    axis = len(x.shape) - len(sizes) + sizes.index(*size) if size else 1
    return op.Reshape(scale, constant(np.array(size, dtype=np.int64))), axis, size


def rounded(x: Any, scale: Any, low: int, high: int, zero: int, site: str) -> Any:
    """`operations.round`: a quantizer, with a scale along one axis at most."""
    scale, axis, size = _along(scale, x)
    of_zero = constant(np.full(size, zero, dtype=np.uint8))
    count = op.QuantizeLinear(x, op.Mul(scale, constant(np.float32(BEFORE))), of_zero, axis=axis)
    ends = (low + zero, high + zero)
    return count if ends == (0, 255) else op.Clip(count, *(constant(np.uint8(end)) for end in ends))


def counts(bytes_: Any, zero: int, unit: Any = None) -> Any:
    """`operations.counts`. Behind a DequantizeLinear without a unit onnxruntime would round the weights of a convolution."""
    if unit is None:
        value = op.Cast(bytes_, to=FLOAT)
        return op.Sub(value, constant(np.float32(zero))) if zero else value
    unit, axis, size = _along(unit, bytes_)
    return op.DequantizeLinear(bytes_, unit, constant(np.full(size, zero, dtype=np.uint8)), axis=axis)


def one(x: Any) -> Any:
    """`operations.one`: the number of inputs, or 1 if there are more."""
    number = op.Clip(op.Shape(x, start=0, end=1), constant(np.int64(1)), constant(np.int64(1)))
    return op.Cast(op.Squeeze(number), to=FLOAT)


def product(
    bytes_: Any, weight: Any, one: Any, scale: Any, bias: Any, stride: Sequence[int] = (), padding: Sequence[int] = (),
    dilation: Sequence[int] = (), zero: int = 0,
) -> Any:  # fmt: skip
    """`operations.product`: integer sums, a scale and a bias, which runtimes put together as behind dynamic quantizers."""
    of_zero, rows = constant(np.uint8(zero)), len(stride)
    if stride:
        extent, sizes = weight.shape[2:], (-1, weight.shape[0])
        weight = op.Transpose(weight, perm=[*range(2, rows + 2), 1, 0])
        weight = op.Reshape(weight, constant(np.array(sizes)))
        bytes_ = _windows(bytes_, of_zero, bytes_.shape[2:], extent, stride, padding, dilation)
    else:
        weight = op.Transpose(weight, perm=[1, 0])
    value = op.Cast(op.MatMulInteger(bytes_, weight, of_zero), to=FLOAT)
    value = op.Mul(value, op.Mul(one, scale))
    value = value if bias is None else op.Add(value, bias)
    return op.Transpose(value, perm=[0, rows + 1, *range(1, rows + 1)]) if stride else value


def byte_pairs(lhs: Any, rhs: Any, one: Any, scale: Any, lhs_zero: int, rhs_zero: int) -> Any:
    """`operations.byte_pairs`: unsigned times signed is the fastest; a byte below 128 is the same number."""
    zeros = constant(np.uint8(lhs_zero)), constant(np.int8(rhs_zero))
    sums = op.MatMulInteger(lhs, op.Cast(rhs, to=INT8), *zeros)
    return op.Mul(op.Cast(sums, to=FLOAT), op.Mul(one, scale))


def sums(
    units: Any, weight: Any, stride: Sequence[int] = (), padding: Sequence[int] = (), dilation: Sequence[int] = (),
    groups: int = 1, most: int = 0, signed: bool = True,
) -> Any:  # fmt: skip
    """`operations.sums`: one product of bytes for each digit of the units, which are from −64 to 64.

    Two products of such bytes and of weights up to ±127 fit into 16 bits, in which processors without VNNI add them. A
    convolution multiplies its windows: onnxruntime has fast products of bytes for matrices alone.
    """
    zero, rows = constant(np.uint8(SEVEN_BITS)), len(stride)
    around = (stride, padding, dilation)
    geometry = {"strides": [*stride], "dilations": [*dilation], "pads": [*padding, *padding], "group": groups}
    if groups > 1 and most * EIGHT_BITS * prod(weight.shape[1:]) < EXACT:  # floats are exact, too
        return op.Conv(units, op.CastLike(weight, units), **geometry)
    if groups > 1:
        raised = op.Add(op.Cast(weight, to=INT32), constant(np.int32(EIGHT_BITS)))
        weight = op.CastLike(raised, zero)
    elif stride:
        extent, sizes = weight.shape[2:], (-1, weight.shape[0])
        weight = op.Transpose(weight, perm=[*range(2, rows + 2), 1, 0])
        weight = op.Reshape(weight, constant(np.array(sizes)))
    else:
        weight = op.Transpose(weight, perm=[1, 0])

    def summed(digit: Any) -> Any:
        if groups > 1:
            return op.ConvInteger(digit, weight, zero, constant(np.uint8(EIGHT_BITS)), **geometry)
        if not stride:
            return op.MatMulInteger(digit, weight, zero)
        seen = _windows(digit, zero, units.shape[2:], extent, *around)
        return op.Transpose(op.MatMulInteger(seen, weight, zero), perm=[0, rows + 1, *range(1, rows + 1)])

    return op.CastLike(_total(map(summed, _digits(units, most))), units)


def pairs(
    lhs: Any, rhs: Any, lhs_most: int = 0, rhs_most: int = 0, lhs_signed: bool = True, rhs_signed: bool = True
) -> Any:
    """`operations.pairs`: one product of bytes for each digit of both factors."""
    zero, columns = constant(np.uint8(SEVEN_BITS)), [*_digits(rhs, rhs_most)]
    rows = (
        _total(op.MatMulInteger(row, column, zero, zero) for column in columns)
        for row in _digits(lhs, lhs_most)
    )
    return op.CastLike(_total(rows), lhs)


def _digits(units: Any, most: int) -> Iterator[Any]:
    """Yield the digits of whole numbers as bytes, the highest first."""
    zero, rest, digits = constant(np.uint8(SEVEN_BITS)), units, 1
    while most >= SEVEN_BITS * BASE ** (digits - 1):
        digits += 1
    for power in reversed(range(digits)):
        base = constant(np.float32(BASE**power))
        digit = op.QuantizeLinear(rest, base, zero)
        rest = op.Sub(rest, op.DequantizeLinear(digit, base, zero)) if power else rest
        yield digit


def _total(parts: Iterable[Any]) -> Any:
    """Return the number of these digits."""
    return reduce(lambda total, part: op.Add(op.Mul(total, constant(np.int32(BASE))), part), list(parts))


def _windows(
    image: Any, zero: Any, size: Sequence[int], extent: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> Any:  # fmt: skip
    """Return what each place of a convolution sees, [batch, …, places of the kernel · channels]."""
    rows = len(size)
    image = op.Transpose(image, perm=[0, *range(2, rows + 2), 1])
    if any(padding):
        image = op.Pad(image, constant(np.array([0, *padding, 0] * 2)), zero)
    lasts = [s + 2 * p - d * (e - 1) for s, p, d, e in zip(size, padding, dilation, extent, strict=True)]
    if all(part == 1 for part in (*extent, *stride)):
        return image
    axes, steps = constant(np.arange(1, rows + 1)), constant(np.array(stride))
    parts = []
    for place in product_of(*map(range, extent)):
        starts = [d * k for d, k in zip(dilation, place, strict=True)]
        ends = [start + last for start, last in zip(starts, lasts, strict=True)]
        parts.append(op.Slice(image, constant(np.array(starts)), constant(np.array(ends)), axes, steps))
    return op.Concat(*parts, axis=-1)


TRANSLATIONS = {
    torch.ops.spikes.sums.default: sums,
    torch.ops.spikes.pairs.default: pairs,
    torch.ops.spikes.round.default: rounded,
    torch.ops.spikes.counts.default: counts,
    torch.ops.spikes.one.default: one,
    torch.ops.spikes.plus.default: lambda x, other: op.Sum(x, other),
    torch.ops.spikes.product.default: product,
    torch.ops.spikes.byte_pairs.default: byte_pairs,
}
