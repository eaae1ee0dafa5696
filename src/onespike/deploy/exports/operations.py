"""What sites do, as operations with names: each is one node of an exported graph, and its definition is its decomposition.

row_gain  x → powers of two            where the rows of a site have steps by their own magnitude
fire      x → signed counts            the neuron of a site
decode    counts → values              where two activations meet, and in the float form everywhere
linear    counts → values              8-bit weights, exact sums, one scale for each output, bias
conv      counts → values              likewise
matmul    counts, counts → values      attention: exact sums of counts with counts
compare   integers → signed counts     the neuron and the functions before it, as thresholds on sums

All act in the precision of their input. `torch.export` keeps them whole, and ONNX is written from the definitions; only the
sums of products have other nodes there.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import log2

import torch
from torch import Tensor

from onespike.deploy.products import multiply, units_of
from onespike.spikes.code import COARSEST, FINEST, SpikeCode
from onespike.spikes.fire_functions import defined_by, fire_compared

POWERS = tuple(2.0**k for k in range(int(log2(FINEST)), int(log2(COARSEST)) + 1))
"""The gains that a row may have by its magnitude."""
LIBRARY = torch.library.Library("spikes", "FRAGMENT")


PRODUCTS = {f"spikes.{name}": f"spikes.{name}_sums" for name in ("linear", "conv", "matmul")}
"""A product → its integer sums, before scale and bias."""


def operation(definition: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Register a function of tensors as `torch.ops.spikes.NAME`, which decomposes into what the function does."""
    name = definition.__name__
    LIBRARY.define(name + torch.library.infer_schema(definition, mutates_args=()))
    LIBRARY.impl(name, definition, "CompositeImplicitAutograd")
    registered: Callable[..., Tensor] = getattr(torch.ops.spikes, name)
    return registered


@operation
def row_gain(x: Tensor, typical: Tensor, center: Tensor | None, gain: Tensor | None) -> Tensor:
    """gain·2^round(log2(mean|x − center| / typical)) for each row along the last axis, the power from ½ to 2¹⁴."""
    x = x if center is None else x - center
    ratio = x.abs().mean(-1, keepdim=True) * (2**0.5 / typical)
    power = fire_compared(ratio.clamp(min=FINEST), POWERS, POWERS)
    return power if gain is None else power * gain


@operation
def fire(
    x: Tensor, positive: Tensor, negative: Tensor, center: Tensor | None, gain: Tensor | None, sides: str,
    levels: Sequence[int], bounds: Sequence[float], site: str,
) -> Tensor:  # fmt: skip
    """±(the largest level whose bound is not above |x − center| / (gain·step±) + ½)."""
    x = x if center is None else x - center
    x = x if gain is None else x / gain
    count = defined_by(tuple(levels), tuple(bounds))
    if sides == "even":  # the same with one division; a step that is off is infinite here
        return count(x.abs() / positive + 0.5) * x.sign()
    up, down = None if sides == "negative" else positive, None if sides == "positive" else negative
    return SpikeCode(up, down, count).fire_coordinate(x)


@operation
def decode(
    counts: Tensor, positive: Tensor, negative: Tensor, gain: Tensor | None, offset: Tensor | None, sides: str,
    site: str,
) -> Tensor:  # fmt: skip
    """offset + gain·unit±·counts."""
    up, down = None if sides == "negative" else positive, negative if sides in ("both", "negative") else None
    code = SpikeCode(up, down, defined_by((1,), (1.0,)), gain=gain, offset=offset)
    return code.decode(counts, counts.dtype)


@operation
def linear(
    counts: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, up: Tensor | None, down: Tensor | None,
    gain: Tensor | None, most: int, signed: bool, site: str,
) -> Tensor:  # fmt: skip
    """gain·scale·(Ŵ·units) + bias, units = up·counts⁺ − down·counts⁻, at most `most`; the sum is exact."""
    value = linear_sums(counts, weight, up, down, most, signed, site) * scale
    value = value if gain is None else value * gain
    return value if bias is None else value + bias


@operation
def conv(
    counts: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, up: Tensor | None, down: Tensor | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int,
    most: int, signed: bool, site: str,
) -> Tensor:  # fmt: skip
    """scale·(Ŵ ∗ units) + bias, as `linear`; the bias may differ by place, where an offset meets the border."""
    rows = (-1, *[1] * (weight.dim() - 2))
    around = (stride, padding, dilation, groups)
    value = conv_sums(counts, weight, up, down, *around, most, signed, site) * scale.view(rows)
    return value if bias is None else value + (bias if bias.dim() > 1 else bias.view(rows))


@operation
def linear_sums(
    counts: Tensor, weight: Tensor, up: Tensor | None, down: Tensor | None, most: int, signed: bool, site: str
) -> Tensor:
    """Ŵ·units, exactly."""
    return sums(units_of(counts, up, down), weight, [], [], [], 1, most, signed)


@operation
def conv_sums(
    counts: Tensor, weight: Tensor, up: Tensor | None, down: Tensor | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], groups: int, most: int, signed: bool, site: str,
) -> Tensor:  # fmt: skip
    """Ŵ ∗ units, exactly."""
    units = units_of(counts, up, down, weight.dim() - 2)
    return sums(units, weight, stride, padding, dilation, groups, most, signed)


def least(gain: Tensor) -> Tensor:
    """Return the smallest gain along the sum of a product; gains by column are alike along it."""
    return gain.amin(-2, keepdim=True) if gain.dim() > 1 else gain


@operation
def matmul(
    lhs: Tensor, rhs: Tensor, lhs_unit: Tensor, rhs_unit: Tensor, lhs_gain: Tensor | None, rhs_gain: Tensor | None,
    lhs_most: int, rhs_most: int, lhs_signed: bool, rhs_signed: bool, site: str,
) -> Tensor:  # fmt: skip
    """Units and gains times the sums of counts with counts."""
    facts = (lhs_most, rhs_most, lhs_signed, rhs_signed, site)
    value = matmul_sums(lhs, rhs, rhs_gain, *facts) * lhs_unit * rhs_unit
    value = value if lhs_gain is None else value * lhs_gain
    return value if rhs_gain is None else value * least(rhs_gain)


@operation
def matmul_sums(
    lhs: Tensor, rhs: Tensor, rhs_gain: Tensor | None, lhs_most: int, rhs_most: int, lhs_signed: bool, rhs_signed: bool,
    site: str,
) -> Tensor:  # fmt: skip
    """Σ_i lhs_i·(gain_i / min gain)·rhs_i, exactly: counts with counts."""
    units = rhs if rhs_gain is None else rhs * (rhs_gain / least(rhs_gain))
    return pairs(lhs, units, lhs_most, rhs_most, lhs_signed, rhs_signed)


@operation
def compare(
    x: Tensor, thresholds: Tensor, rows: Tensor | None, sign: Tensor | None, values: Sequence[int], fraction: int,
    site: str,
) -> Tensor:  # fmt: skip
    """values[number of thresholds ≤ sign·x·2^fraction]; thresholds, or those of each neuron's row, are [.., cuts] as x is."""
    whole = (x if sign is None else x * sign) * 2.0**fraction
    total = torch.full_like(whole, float(values[0]))
    for place, (before, after) in enumerate(pairwise(values)):
        cuts = thresholds[..., place] if rows is None else thresholds[rows.long(), place]
        total = total + (whole >= cuts).to(whole.dtype) * (after - before)
    return total


BEFORE = 1 - 2.0**-22
"""A rounding half to even fires at every bound, as `fire` does, where its scale is so much smaller: a few units in the last place."""


@operation
def round(x: Tensor, scale: Tensor | None, low: int, high: int, zero: int, site: str) -> Tensor:
    """The byte of the whole number nearest to x / scale: a neuron with uniform levels, as quantizers of other runtimes round."""
    whole = (x / (BEFORE if scale is None else scale * BEFORE)).round().clamp(low, high)
    return (whole + zero).to(torch.uint8)


@operation
def counts(bytes: Tensor, zero: int, unit: Tensor | None = None) -> Tensor:
    """The counts of bytes, or unit·counts."""
    value = bytes.float() - zero
    return value if unit is None else value * unit


@operation
def one(x: Tensor) -> Tensor:
    """The number 1, of which runtimes do not know that it is constant."""
    return torch.ones((), dtype=x.dtype)


@operation
def plus(x: Tensor, other: Tensor) -> Tensor:
    """x + other, for which onnxruntime has no slow fusion with the norm behind it."""
    return x + other


@operation
def product(
    bytes: Tensor, weight: Tensor, one: Tensor, scale: Tensor, bias: Tensor | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], zero: int,
) -> Tensor:  # fmt: skip
    """scale·(Ŵ·counts) + bias, or scale·(Ŵ ∗ counts) + bias with a stride, for counts of one byte."""
    rows = (-1, *[1] * len(stride))
    value = sums(counts(bytes, zero), weight, stride, padding, dilation, 1, 0, True) * scale.view(rows)
    return value if bias is None else value + bias.view(rows)


@operation
def byte_pairs(lhs: Tensor, rhs: Tensor, one: Tensor, scale: Tensor, lhs_zero: int, rhs_zero: int) -> Tensor:
    """Sums of products of counts of one byte, with one scale."""
    return torch.matmul(counts(lhs, lhs_zero), counts(rhs, rhs_zero)) * scale


@operation
def pairs(
    lhs: Tensor, rhs: Tensor, lhs_most: int, rhs_most: int, lhs_signed: bool, rhs_signed: bool
) -> Tensor:
    """Sums of products of whole numbers, which are at most `most`, exactly."""
    return torch.matmul(lhs.double(), rhs.double()).to(lhs.dtype)


@operation
def sums(
    units: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int,
    most: int, signed: bool,
) -> Tensor:  # fmt: skip
    """Ŵ·units, or Ŵ ∗ units with a stride, exactly."""
    geometry = (stride, padding, dilation, groups) if stride else ()
    return multiply(units.double(), weight.double(), *geometry).to(units.dtype)
