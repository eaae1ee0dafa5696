"""Integer thresholds: which sums of a product fire which level, its bias folded in.

    (scale·S + bias − center)/step + ½ ≥ bound   ⟺   S ≥ T,   T one integer for each output and level

Negative levels likewise, from the other side. That holds where nothing but ReLU and max-pooling stand between a product
and the neuron behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from onespike.deploy.exports.graph import Graph, arguments, operation_of
from onespike.deploy.folding import flat

RELU = "aten.relu.default"
MONOTONE = (RELU, "aten.max_pool2d.default", "aten.max_pool1d.default")
PRODUCTS = ("spikes.linear", "spikes.conv")
LARGEST = 2**31 - 1


class Sums(NamedTuple):
    """Which sums of a product fire which level, [outputs, levels] each; None for a side that is off."""

    product: str
    above: Tensor | None
    below: Tensor | None


def integer_thresholds(node: fx.Node, graph: Graph) -> Sums | None:
    """Return the thresholds of a neuron in sums of the product before it; None where sums do not decide."""
    neuron, rectified = arguments(node), False
    before: Any = neuron["x"]
    while operation_of(before) in MONOTONE:
        rectified, before = rectified or operation_of(before) == RELU, before.args[0]
    if neuron["gain"] is not None or operation_of(before) not in PRODUCTS:
        return None
    product = arguments(before)
    weight, scale, bias = (graph.tensor(product[name]) for name in ("weight", "scale", "bias"))
    by_row = product.get("gain") is not None or (bias is not None and bias.dim() > 1)
    if weight is None or scale is None or by_row:
        return None
    values = (graph.tensor(neuron[of]) for of in ("positive", "negative", "center"))
    constants = [torch.zeros(1) if value is None else flat(value, 1 - weight.dim()) for value in values]
    if any(len(constant) not in (1, len(weight)) for constant in constants):
        return None  # steps or centers differ along another axis than outputs
    up, down, center = constants
    bias = torch.zeros_like(scale) if bias is None else bias
    low = 0.0 if rectified else -torch.inf
    above = level_thresholds(scale, bias, up, neuron["bounds"], center, low)
    below = -level_thresholds(scale, -bias, down, neuron["bounds"], -center, -torch.inf, -low)
    sides = neuron["sides"]
    return Sums(before.name, None if sides == "negative" else above, None if sides == "positive" else below)


def level_thresholds(
    scale: Tensor,
    bias: Tensor,
    step: Tensor,
    bounds: Sequence[float],
    center: Tensor | float = 0.0,
    low: float = 0.0,
    high: float = torch.inf,
) -> Tensor:
    """Return the smallest sum that fires each level, [outputs, levels]; the largest integer where none does.

    Values are scale·S + bias, clamped to [low, high].

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> level_thresholds(0.5 * one, 0.25 * one, one, (1.0, 2.0))
    tensor([[1, 3]], dtype=torch.int32)
    >>> level_thresholds(one, 0 * one, one, (1.0, 9.0), -one, 0.0, 4.0)  # at 0, which is 1 above the center; never
    tensor([[-2147483647,  2147483647]], dtype=torch.int32)
    """
    jumps = torch.tensor(bounds, dtype=torch.float64)
    scale, bias, step, middle = (
        torch.as_tensor(x, dtype=torch.float64).expand(len(scale))[:, None]
        for x in (scale, bias, step.flatten(), center)
    )

    def fires(sums: Tensor) -> Tensor:
        value = (sums * scale + bias).clamp(low, high) - middle
        return value.clamp(min=0) / step + 0.5 >= jumps

    first = (((jumps - 0.5) * step + middle - bias) / scale).ceil()
    # the quotient is rounded: the threshold may be the integer beside it
    for _ in range(2):
        first = torch.where(fires(first - 1), first - 1, first)
        first = torch.where(fires(first), first, first + 1)
    edges = torch.full_like(first, LARGEST)
    first = torch.where(fires(-edges), -edges, torch.where(fires(edges), first, edges))
    return first.clamp(-LARGEST, LARGEST).int()
