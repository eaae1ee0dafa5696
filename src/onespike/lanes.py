"""Binary lanes: an integer spike as signed binary digits, each a 0/±1 spike on the lane of its power of two.

The product of a layer is linear, so W·y = Σ_k 2^k·(W·d_k) for the digits d_k of y: lane k adds or subtracts weights,
and its sum is shifted by k. In fixed-point arithmetic both sides are the same integer, which `prove` shows for
every product of a converted network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onespike.attach import Neurons
from onespike.calibrate import device_of, evaluating
from onespike.errors import ConversionError
from onespike.neurons import Neuron
from onespike.sites import Site

WEIGHT_BITS = 20
"""Weights in fixed point: with counts below 2^12 and sums of 2^20 terms, float64 holds every integer exactly."""


def digits(counts: Tensor) -> list[Tensor]:
    """The non-adjacent form of integers: for each lane k the digits −1, 0 or 1 with counts = Σ 2^k·digit.

    >>> [lane.item() for lane in digits(torch.tensor(7))]
    [-1, 0, 0, 1]
    """
    rest, lanes = counts.long(), []
    while bool((rest != 0).any()):
        odd = rest % 2
        digit = odd * (2 - rest % 4)  # −1 where two odd bits follow each other, so that the next is 0
        lanes.append(digit)
        rest = (rest - digit) // 2
    return lanes


def shift_and_add(product: Callable[[Tensor], Tensor], counts: Tensor) -> tuple[Tensor, float]:
    """Σ_k 2^k·product(d_k), and how many 0/±1 spikes were sent."""
    total, sent = product(torch.zeros_like(counts)), 0.0
    for lane, digit in enumerate(digits(counts)):
        total = total + product(digit.to(counts.dtype)) * 2.0**lane
        sent += float(digit.abs().sum())
    return total, sent


def fixed_point(weight: Tensor, bits: int = WEIGHT_BITS) -> Tensor:
    """Integers of that many bits, in float64, proportional to the weights."""
    largest = weight.detach().abs().max().double().clamp(min=1e-300)
    fixed: Tensor = (weight.detach().double() / largest * (2**bits - 1)).round()
    return fixed


@dataclass
class LaneProof:
    """What was compared: products (a side each), spikes as integers and as 0/±1 digits, and where a result differed by a bit."""

    products: int = 0
    graded_spikes: float = 0.0
    lane_spikes: float = 0.0
    unequal: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return self.products > 0 and not self.unequal


def _product(key: str, arguments: tuple[Any, ...], options: dict[str, Any], step: Tensor) -> Any:
    """The site's product as a function of its counts, the step folded into fixed-point weights; None for others."""
    if key.startswith("linear"):
        weight = fixed_point(arguments[1] * step)
        return lambda spikes: F.linear(spikes, weight)
    if key.startswith("matmul") and key.endswith("_lhs"):
        other = fixed_point(arguments[1])
        return lambda spikes: spikes @ other
    if key.startswith("conv"):
        given = arguments[1]
        groups = arguments[6] if len(arguments) > 6 else options.get("groups", 1)
        by_group = step.reshape(groups, 1, -1) if step.numel() > 1 else step.reshape(1, 1, 1)
        scale = by_group.expand(groups, len(given) // groups, -1).reshape(len(given), -1)
        weight = fixed_point(given * scale.view(*scale.shape, *[1] * (given.dim() - 2)))
        function = (F.conv1d, F.conv2d, F.conv3d)[given.dim() - 3]
        passed = {k: v for k, v in options.items() if k != "bias"}
        return lambda spikes: function(spikes, weight, None, *arguments[3:], **passed)
    return None


def prove(snn: nn.Module, batch: Tensor) -> LaneProof:
    """Send every spike of a batch on lanes, and compare each product with the graded one, bit by bit.

    Equal products give equal inputs to the next layer, so the networks are equal too. A product of two activations
    is driven by its first operand, as in the ledger.
    """
    proof = LaneProof()

    def meter(owner: Neurons, key: str, x: Tensor, count: Any) -> Tensor:
        neuron = owner[key]
        if not isinstance(neuron, Neuron):
            return x
        counts = neuron.counts(x)
        for sign, step in zip((1, -1), neuron.active(neuron.steps()), strict=True):
            product = None if step is None else _product(key, count.args, count.keywords, step)
            if product is None:
                continue
            spikes = (counts * sign).clamp(min=0).double()
            graded, (lanes, sent) = product(spikes), shift_and_add(product, spikes)
            proof.products += 1
            proof.graded_spikes += float(spikes.sum())
            proof.lane_spikes += sent
            if not torch.equal(graded, lanes):
                proof.unequal += (str(Site(owner.owner, key)),)
        return neuron.decode(counts, x.dtype)

    owners = [module for module in snn.modules() if isinstance(module, Neurons)]
    if not owners:
        raise ConversionError("lanes: this network has no neurons. Convert it first.")
    with evaluating(snn):
        try:
            for owner in owners:
                owner.meter = meter
            snn(batch.to(device_of(snn)))
        finally:
            for owner in owners:
                owner.meter = None
    return proof
