"""Integer inference: spike counts and weights as 8-bit integers, multiplied exactly; scales and bias follow once.

A neuron's value is step⁺ times a positive count or step⁻ times a negative one, so that a linear map of it is
(step⁺·(c⁺·W) − step⁻·(c⁻·W))·s + b, where W are 8-bit weights and s their scales, one an output. The products in
parentheses are sums of integers. They are exact, whatever the order of the summands. Where both steps are equal, or
one side is off, one of them is enough; and so it is where step⁻/step⁺ is a fraction p/q of small integers, for
q·c⁺ − p·c⁻ counts one unit, step⁺/q. The kernel of our own makes it such a fraction, as weights are made integers.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn

from onespike import kernels, synapses
from onespike.attach import Neurons
from onespike.convert import is_converted, steps_of
from onespike.errors import UsageError
from onespike.neurons import AffineFire, Neuron

WEIGHT = 127
"""The largest 8-bit weight; −128 is left out, so that both signs reach equally far."""
DIGIT = 128
"""Counts are written in this base, each digit in one signed byte."""
KEY = "linear0_input"
NEAR = 2**-8
"""How far a step may move, relatively, to be in a ratio of small integers: as far as rounding moves the largest
weights. With `mixed:8`, whose counts leave room for integers up to 124, nearly every ratio is that near to one."""


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """8-bit weights and their scales, one for each output (the first dimension): weight ≈ integer · scale.

    >>> quantise(torch.tensor([[0.5, -1.27], [0.0, 0.0]]))
    (tensor([[  50, -127],
            [   0,    0]], dtype=torch.int8), tensor([0.0100, 1.0000]))
    """
    scale = weight.detach().flatten(1).abs().amax(1) / WEIGHT
    scale = torch.where(scale > 0, scale, 1.0)
    rows = scale.view(-1, *[1] * (weight.dim() - 1))
    return (weight.detach() / rows).round().clamp(-WEIGHT, WEIGHT).to(torch.int8), scale


def integer_product(counts: Tensor, weight: Tensor) -> Tensor:
    """counts @ weight.T in int32, for integer-valued counts of any size and int8 weights.

    Counts from 128 on are rare. They are split into digits of base 128, and only rows that hold one are multiplied
    again for the next digit.

    >>> integer_product(torch.tensor([[263.0, -1.0], [2.0, 0.0]]), torch.tensor([[127, 5]], dtype=torch.int8))
    tensor([[33396],
            [  254]], dtype=torch.int32)
    """
    high = (counts / DIGIT).trunc()  # a power of two: exact
    total: Tensor = torch._int_mm((counts - DIGIT * high).to(torch.int8), weight.t())
    large = high.any(1).nonzero().flatten()
    if len(large):
        total[large] += DIGIT * integer_product(high[large], weight)
    return total


def common_unit(positive: float, negative: float, limit: int) -> tuple[int, int] | None:
    """(q, p) up to `limit` with p/q ≈ negative/positive, or None if none is near enough; (1, 1) for one side alone.

    >>> common_unit(1.0, 0.75, 100), common_unit(0.0, 0.5, 1), common_unit(1.0, 0.7, 1)
    ((4, 3), (1, 1), None)
    """
    if not positive or not negative:
        return 1, 1
    ratio = Fraction(negative) / Fraction(positive)
    near = ratio.limit_denominator(limit) if ratio <= 1 else 1 / (1 / ratio).limit_denominator(limit)
    return (near.denominator, near.numerator) if near and abs(near / ratio - 1) <= NEAR else None


def _largest_sum(weight: Tensor) -> int:
    """What the largest output would be of inputs that are ±1."""
    return int(weight.int().abs().sum(1).max())


class IntegerWeight(nn.Module):
    """The 8-bit weight of a linear map with one scale an output; `packed` where our own kernel multiplies."""

    weight: Tensor
    scale: Tensor
    packed: Tensor | None = None
    times: tuple[int, int] | None = (1, 1)

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)

    def pack_(self, neuron: Neuron) -> None:
        """Lay the weights out for the kernel and bring the neuron's steps to a common unit, if there is one."""
        room = min(kernels.COUNT, (2**31 - 1) // max(_largest_sum(self.weight), 1)) // neuron.largest
        up, down = neuron.steps()
        self.times, self.packed = common_unit(float(up), float(down), room), kernels.pack(self.weight)
        if self.times not in (None, (1, 1)):
            q, p = self.times
            neuron.negative.copy_(neuron.positive.double() * p / q)

    def fused(self, x: Tensor, neuron: Neuron, bias: Tensor | None) -> Tensor | None:
        """Values of [rows, inputs] with the bias from the kernel; None where the plain form must run."""
        if self.packed is None:
            return None
        up, down = neuron.active(neuron.steps())
        call = partial(kernels.fire_product, x, form=neuron.form, packed=self.packed, scale=self.scale)
        if self.times is not None:
            return call((up, down), times=self.times, bias=bias)
        parts = [call(sides, times=(1, 1), bias=None) for sides in ((up, None), (None, down))]
        if parts[0] is None or parts[1] is None:
            return None
        value = parts[0].add_(parts[1])
        return value if bias is None else value.add_(bias)

    def forward(self, counts: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Counts of shape [rows, inputs] → values of shape [rows, outputs], without the bias."""
        if torch.equal(positive, negative) or not bool(positive):
            return integer_product(counts, self.weight) * (negative * self.scale)
        up = integer_product(counts.clamp(min=0), self.weight) * (positive * self.scale)
        if not bool(negative):
            return up
        return up - integer_product((-counts).clamp(min=0), self.weight) * (negative * self.scale)

    def extra_repr(self) -> str:
        return f"int8 {tuple(self.weight.shape)}"


def _integer_forward(module: Any, x: Tensor) -> Tensor:
    owner: Neurons = module.neurons
    neuron: Any = owner[KEY]
    if owner.meter is not None:
        owner.meter(owner, KEY, x, partial(synapses.linear, x, module.integer.weight))
    rows = x.reshape(-1, x.shape[-1])
    fused: Tensor | None = module.integer.fused(rows, neuron, module.bias)
    if fused is not None:
        return fused.view(*x.shape[:-1], fused.shape[-1])
    counts = neuron.counts(rows)
    values: Tensor = module.integer(counts.nan_to_num(nan=0.0), *neuron.steps())
    if module.bias is not None:
        values = values + module.bias
    # No integer is NaN; a row that holds one is NaN altogether, as in float.
    values = values + counts.sum(1, keepdim=True) * 0.0
    return values.view(*x.shape[:-1], values.shape[-1])


@dataclass(frozen=True)
class Optimised:
    """What `optimize_` did: how many products run on integers, and why the others do not."""

    integer: int
    simulated: dict[str, str]

    def __str__(self) -> str:
        whole = self.integer + len(self.simulated)
        reasons = sorted(set(self.simulated.values()))
        rest = f"; the others round their weights to 8 bits and multiply in float32 ({'; '.join(reasons)})"
        return f"{self.integer} of {whole} weighted products run on 8-bit integers" + (
            rest if reasons else ""
        )


def has_integer_units() -> bool:
    """Whether torch multiplies bytes fast here (VNNI or AMX), or our own kernel 16-bit counts (AVX2 and a compiler)."""
    return _has_byte_units() or kernels.is_fast()


def _has_byte_units() -> bool:
    return bool(torch.cpu._is_vnni_supported() or torch.cpu._is_amx_tile_supported())


def _obstacle(module: nn.Module, owner: Neurons, weight: Tensor, integer_units: bool) -> str | None:
    """Why a product with rounded weights is simulated in float, or None if it runs on integers."""
    if type(module) is not nn.Linear or set(owner) != {KEY}:
        return "only nn.Linear has an integer form"
    neuron: Any = owner[KEY]
    if isinstance(neuron, AffineFire):
        return "its neuron adds a constant to the spikes"
    if any(side.dim() for side in neuron.steps()):
        return "one step a channel is no common factor"
    if neuron.largest * _largest_sum(weight) >= 2**31:
        return "the largest counts could overflow 32 bits"
    if not _has_byte_units() and (neuron.form() is None or neuron.largest > kernels.COUNT):
        return "its neuron, or its largest count, has no place in the integer kernel"
    return None if integer_units else "this processor has no VNNI, AMX or AVX2, or there is no compiler"


def optimize_(snn: nn.Module, *, integer_units: bool | None = None) -> Optimised:
    """Round the weights behind spikes to 8 bits and run linear maps on integers, in place."""
    if not is_converted(snn):
        raise UsageError("optimize: this network has no neurons. Convert it first.")
    if steps_of(snn) > 1:
        raise UsageError("optimize: integer inference is for one timestep. Convert with steps=1.")
    elsewhere = next((p.device for p in snn.parameters() if p.device.type != "cpu"), None)
    if elsewhere is not None:
        raise UsageError(f"optimize: integer inference runs on the CPU, not on {elsewhere}. Use snn.cpu().")
    units = has_integer_units() if integer_units is None else integer_units
    done, simulated = 0, dict[str, str]()
    for name, module in list(snn.named_modules()):
        owner, weight = module._modules.get("neurons"), module._parameters.get("weight")
        if not isinstance(owner, Neurons) or weight is None or weight.dim() < 2:
            continue
        if not any(isinstance(neuron, Neuron) and key.endswith("_input") for key, neuron in owner.items()):
            continue
        if weight.dtype != torch.float32:
            raise UsageError(f"optimize: {name} has weights of type {weight.dtype}. Use snn.float().")
        integers, scale = quantise(weight)
        reason = _obstacle(module, owner, integers, units)
        owner.weights = "integers" if reason is None else "rounded"
        if reason is not None:
            simulated[name] = reason
            rows = scale.view(-1, *[1] * (weight.dim() - 1))
            module.weight = nn.Parameter(integers * rows, requires_grad=False)
            continue
        done += 1
        module.integer = IntegerWeight(integers, scale)
        neuron = owner[KEY]
        if not _has_byte_units() and isinstance(neuron, Neuron):
            module.integer.pack_(neuron)
        module.weight = None
        module.forward = update_wrapper(partial(_integer_forward, module), nn.Linear.forward)
    if not done and not simulated:
        raise UsageError("optimize: no spikes meet a weight in this network. Convert more of its sites.")
    return Optimised(done, simulated)


def optimize(snn: nn.Module, *, integer_units: bool | None = None) -> nn.Module:
    """A copy of a converted network for integer inference; the network itself stays as it is.

    Weights behind spikes become 8-bit integers with one scale an output. Linear maps multiply counts and weights as
    integers where the processor is fast at it; what cannot is simulated with the same rounded weights.

    Args:
        snn: a converted network in float32 on the CPU.
        integer_units: run on integers (True) or simulate (False) whatever the processor; by default it decides.

    >>> from onespike import calibrate, convert
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> snn = convert(model, calibrate(model, [torch.randn(64, 2)]))
    >>> optimize(snn, integer_units=True)[2].integer
    IntegerWeight(int8 (3, 3))
    """
    twin = copy.deepcopy(snn)
    optimize_(twin, integer_units=integer_units)
    return twin
