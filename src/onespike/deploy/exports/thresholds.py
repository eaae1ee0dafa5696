"""Integer thresholds: which sums of a product fire which level, its bias folded in.

    (scale·S + bias)/step + ½ ≥ bound   ⟺   S ≥ T,   T one integer for each output and level

This holds where only ReLU, max-pooling and changes of shape are between a product and the neuron behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

MONOTONE = (
    "aten.relu.default", "aten.relu_.default", "aten.max_pool2d.default", "aten.max_pool1d.default", "aten.dropout.default",
    "aten.to.dtype", "aten.contiguous.default",
)  # fmt: skip


def product_before(node: fx.Node) -> fx.Node | None:
    """Return the one product with a weight whose sums decide this neuron's counts, if there is one."""
    from_: Any = node.args[0]
    while isinstance(from_, fx.Node) and str(from_.target) in MONOTONE:
        from_ = from_.args[0]
    is_product = isinstance(from_, fx.Node) and str(from_.target) in (
        "spikes.linear.default",
        "spikes.conv.default",
    )
    return from_ if is_product else None


def integer_thresholds(
    node: fx.Node, tensors: dict[str, Tensor], renamed: dict[str, str]
) -> tuple[str, Tensor] | None:
    """Return (product, [outputs, levels] int32) for a neuron that fires on positive inputs; None if sums do not decide."""
    _, positive, _, center, gain, sides, _, bounds, _ = node.args
    product = product_before(node)
    if product is None or center is not None or gain is not None or sides != "positive":
        return None
    args = product.args
    if str(product.target) == "spikes.linear.default" and args[6] is not None:  # gains by row
        return None

    def tensor(of: Any) -> Tensor | None:
        return None if of is None else tensors[renamed[of.name]].double()

    step, scale, bias = tensor(positive), tensor(args[2]), tensor(args[3])
    if step is None or scale is None or step.numel() > 1 or (bias is not None and bias.dim() > 1):
        return None
    added = torch.zeros_like(scale) if bias is None else bias
    return product.name, level_thresholds(scale, added, step, bounds)  # type: ignore[arg-type]


def level_thresholds(scale: Tensor, bias: Tensor, step: Tensor, bounds: Sequence[float]) -> Tensor:
    """Return the smallest sum that fires each level, [outputs, levels].

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> level_thresholds(0.5 * one, 0.25 * one, one, (1.0, 2.0))
    tensor([[1, 3]], dtype=torch.int32)
    """
    jumps = torch.tensor(bounds, dtype=torch.float64)

    def fires(sums: Tensor) -> Tensor:
        value = sums * scale[:, None] + bias[:, None]
        return value.clamp(min=0) / step + 0.5 >= jumps

    first = (((jumps - 0.5) * step - bias[:, None]) / scale[:, None]).ceil()
    # the quotient is rounded: the threshold may be a neighboring integer
    for _ in range(2):
        first = torch.where(fires(first - 1), first - 1, first)
        first = torch.where(fires(first), first, first + 1)
    return first.clamp(-(2**31), 2**31 - 1).int()
