"""How often a product uses each element of an operand: the cost of one spike at that operand."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes


class Synapses(NamedTuple):
    """A product as seen from one operand.

    The padding of a convolution counts as MACs, as any operation counter states them, and not as fan-out: unit spikes give
    exactly the sum of the unit-weight product.
    """

    macs: int  # of the whole product
    fan_out: int | Tensor  # synapses behind each element; it broadcasts to the operand
    outputs: int = 0  # elements that the product gives

    @property
    def mean_fan_out(self) -> float:
        fan = self.fan_out
        return float(fan.double().mean() if isinstance(fan, Tensor) else fan)


def masked(a: Tensor, b: Tensor, operand: Tensor, visible: Tensor, weighted: bool) -> Synapses:
    """a @ b under a mask, as in attention, seen from a or b: some results are wanted or, if weighted, some of a not zero."""
    batch, rows = math.prod(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])), a.shape[-2]
    inner, columns = b.shape[-2:]
    pairs = int(visible.sum()) * (batch * rows * (inner if weighted else columns) // visible.numel())
    if not weighted:
        return Synapses(pairs * inner, visible.sum(-1 if operand is a else -2, keepdim=True), pairs)
    fan_out = columns if operand is a else visible.sum(-2).unsqueeze(-1)
    return Synapses(pairs * columns, fan_out, batch * rows * columns)


def grouped(a: Tensor, b: Tensor, ends: Tensor | None, operand: Tensor) -> Synapses:
    """Products of groups that end at `ends`, seen from `operand` (a or b).

    The groups divide the rows of a matrix a, the columns of a matrix b, or, if both are matrices, the contracted axis;
    what lies behind the last end belongs to none and is not multiplied.
    """
    if ends is None:
        return einsum("...ik,...kj", (a, b), operand)
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    whole, flat = int(ends[-1]), a.dim() == b.dim() == 2
    sizes = [rows, inner, columns]
    sizes[1 if flat else 0 if a.dim() == 2 else 2] = whole
    macs = math.prod(sizes)
    outputs = len(ends) * rows * columns if flat else macs // max(inner, 1)
    if operand.dim() == 3:  # the same for a whole group: how many rows, or columns, it meets
        return Synapses(macs, ends.diff(prepend=ends.new_zeros(1)).long().view(-1, 1, 1), outputs)
    axis, across = (-1 if flat else -2, columns) if operand is a else (-2 if flat else -1, rows)
    used = (torch.arange(operand.shape[axis], device=ends.device) < whole) * across
    return Synapses(macs, used.unsqueeze(-1) if axis == -2 else used, outputs)


def einsum(equation: str, operands: Sequence[Tensor], operand: Tensor) -> Synapses:
    """A product of two operands (or more, contracted in pairs) over the volume of all its indices."""
    terms, arrow, named = equation.replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for term, x in zip(terms.split(","), operands, strict=True):
        before, _, after = term.partition("...")
        hidden = x.dim() - len(before) - len(after) if "..." in term else 0
        names = [*before, *(f"...{hidden - i}" for i in range(hidden)), *after]
        for name, size in zip(names, x.shape, strict=True):
            sizes[name] = max(sizes.get(name, size), size)
    if not arrow:  # the indices that occur once
        named = "..." + "".join(name for name in sizes if terms.count(name) == 1)
    volume = math.prod(sizes.values())
    broadcast = [name for name in sizes if name.startswith("...")] if "..." in named else []
    outputs = math.prod(sizes[name] for name in (*named.replace("...", ""), *broadcast))
    return Synapses(volume * (len(operands) - 1), volume // max(operand.numel(), 1), outputs)


def convolution(
    function: Any, x: Tensor, weight: Tensor, transposed: bool, groups: int = 1, **settings: Any
) -> Synapses:
    """A convolution of torch; near a border, and between strides, an element meets fewer kernel positions.

    >>> convolution(torch.conv1d, torch.zeros(1, 1, 3), torch.zeros(1, 1, 3), False, padding=1).fan_out
    tensor([2, 3, 2])
    """
    dims = weight.dim() - 2
    batch, channels = x.shape[: -dims - 1].numel(), x.shape[-dims - 1]
    apart = torch.inference_mode(False)  # with gradients
    with apart, torch._C.DisableTorchFunction(), _disable_current_modes():
        image = torch.ones(1, 1, *x.shape[-dims:], requires_grad=True)
        result = function(image, torch.ones(1, 1, *weight.shape[2:]), None, **settings)
        met = torch.autograd.grad(result.sum(), image)[0][0, 0].long()
    reached = weight.shape[0] * weight.shape[1] // channels  # outputs of one place and kernel position
    places = batch * (image if transposed else result).numel()
    fan_out = (met * reached).to(x.device)
    return Synapses(places * weight.numel(), fan_out, batch * result.numel() * reached * groups)
