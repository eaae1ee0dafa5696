"""Binary lanes: an integer spike as signed binary digits, each a 0/±1 spike on the lane of its power of two.

The product of a layer is linear, so W·y = Σ_k 2^k·(W·d_k) for the digits d_k of y: lane k adds or subtracts
weights, and its sum is shifted by k. In fixed-point arithmetic both sides are the same integer. `prove` shows this
for every product of a converted network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onespike.conversion.network import is_converted
from onespike.errors import ConversionError
from onespike.neurons import Neuron
from onespike.runtime.batches import call, to
from onespike.runtime.forward import device_of, evaluating
from onespike.sites import Operand, Visit, visiting

WEIGHT_BITS = 20
"""Weights in fixed point: with counts below 2^12 and sums of 2^20 terms, float64 holds every integer exactly."""


def digits(counts: Tensor) -> list[Tensor]:
    """Return the non-adjacent form of integers: per lane k the digits −1, 0 or 1 with counts = Σ 2^k·digit.

    >>> [lane.item() for lane in digits(torch.tensor(7))]
    [-1, 0, 0, 1]
    """
    rest, lanes = counts.long(), []
    while bool((rest != 0).any()):
        odd = rest % 2
        digit = odd * (2 - rest % 4)  # −1 where two odd bits are adjacent, so that the next is 0
        lanes.append(digit)
        rest = (rest - digit) // 2
    return lanes


def naf_weight(counts: Tensor) -> Tensor:
    """Return how many nonzero digits integers have in non-adjacent form, which has the fewest.

    >>> naf_weight(torch.tensor([0, 1, 3, 7, 11, 263])).tolist()
    [0, 1, 2, 2, 3, 3]
    """
    return sum((digit.abs() for digit in digits(counts)), torch.zeros_like(counts, dtype=torch.long))


def naf_length(largest: int) -> int:
    """Return how many digits, zeros included, the integers up to `largest` need: the number of lanes.

    >>> [naf_length(n) for n in (1, 2, 3, 5, 7, 263)]
    [1, 2, 3, 3, 4, 9]
    """
    return (3 * largest).bit_length() - 1


def digits_of(counts: Tensor) -> Tensor:
    """Return `naf_weight` of each magnitude in a tensor of many counts, by a table.

    >>> digits_of(torch.tensor([[0.0, -1.0], [7.0, 11.0]])).tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    """
    sizes = counts.abs().to(torch.int32)
    table = naf_weight(torch.arange(int(sizes.max()) + 1 if sizes.numel() else 1))
    return table.float().to(sizes.device)[sizes]


def shift_and_add(product: Callable[[Tensor], Tensor], counts: Tensor) -> tuple[Tensor, float]:
    """Return Σ_k 2^k·product(d_k) and the number of 0/±1 spikes sent."""
    total, sent = product(torch.zeros_like(counts)), 0.0
    for lane, digit in enumerate(digits(counts)):
        total = total + product(digit.to(counts.dtype)) * 2.0**lane
        sent += float(digit.abs().sum())
    return total, sent


def fixed_point(weight: Tensor, bits: int = WEIGHT_BITS) -> Tensor:
    """Return integers of `bits` bits, in float64, proportional to the weights."""
    largest = weight.detach().abs().max().double().clamp(min=1e-300)
    return torch.round(weight.detach().double() / largest * (2**bits - 1))


@dataclass
class LaneProof:
    """The comparison: products (one per side), spikes as integers and as 0/±1 digits, and results that differ."""

    products: int = 0
    graded_spikes: float = 0.0
    lane_spikes: float = 0.0
    unequal: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return self.products > 0 and not self.unequal


def _product(operand: Operand, step: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Return the site's product as a function of its counts, with the step in the fixed-point weights; else None."""
    product, role = operand.product, operand.site.role
    if role == "lhs":
        other = fixed_point(product.operands["rhs"])
    elif role == "input" and "weight" in product.operands:
        weight, groups = product.operands["weight"], product.groups
        by_group = step.reshape(groups, 1, -1) if step.numel() > 1 else step.reshape(1, 1, 1)
        scale = by_group.expand(groups, len(weight) // groups, -1).reshape(len(weight), -1)
        other = fixed_point(weight * scale.view(*scale.shape, *[1] * (weight.dim() - 2)))
    else:
        return None
    return lambda spikes: product.multiply(spikes, other)


def prove(snn: nn.Module, batch: Any) -> LaneProof:
    """Send every spike of a batch on lanes, and compare each product with the graded one, bit by bit.

    Equal products give equal inputs to the next layer, so the networks are equal too. The first operand drives a
    product of two activations, as in the ledger.
    """
    if not is_converted(snn):
        raise ConversionError("lanes: this network has no neurons. Convert it first.")
    proof = LaneProof()

    def compare(operand: Operand, x: Tensor) -> Tensor:
        neuron = operand.neuron(x)
        if not isinstance(neuron, Neuron) or neuron.dense:
            return x
        counts = neuron.counts(x)
        for sign, step in neuron.code().populations:
            product = _product(operand, step)
            if product is None:
                continue
            spikes = (counts * sign).clamp(min=0).double()
            graded, (lanes, sent) = product(spikes), shift_and_add(product, spikes)
            proof.products += 1
            proof.graded_spikes += float(spikes.sum())
            proof.lane_spikes += sent
            if not torch.equal(graded, lanes):
                proof.unequal += (str(operand.site),)
        return neuron.decode(counts, x.dtype)

    with evaluating(snn), visiting(snn, Visit(compare)):
        call(snn, to(batch, device_of(snn)))
    return proof
