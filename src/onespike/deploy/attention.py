"""Integer attention: counts of q, k, probabilities and v as 16-bit integers, both products summed exactly.

    q·kᵀ = u_q·u_k·gain_i·gain_j·(y_q·y_k) + u_k·gain_j·(offset_q·y_k) + what is the same for all keys
    A·v  = step_i·(u_v·(A·y_v) + offset_v·ΣA)

A row's constant does not change its softmax. q's offset is rounded to whole numbers, like weights. Gains of v, which
are inside the sum, are whole multiples of the smallest and multiply the probabilities' counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from onespike import kernels
from onespike.deploy.folding import common_units
from onespike.deploy.products import move_
from onespike.neurons import Neuron
from onespike.spikes import SpikeCode

OFFSET = 2**13 - 1
"""The largest whole number of q's offset: 64 of them times the largest counts stay below 2³¹."""


class _Operand(NamedTuple):
    """One operand: its code with tensors as the kernel takes them, the units of its counts, and the largest of them."""

    code: SpikeCode
    times: tuple[Tensor, Tensor]
    unit: Tensor
    most: int


def _spread(x: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    """Return a tensor that broadcasts to [heads, …] in this shape, in which axes of 1 are not kept; None if it cannot."""
    if x is None:
        return None
    lead = x.reshape(*x.shape[x.dim() - len(shape) :]) if x.dim() > len(shape) and x.shape[0] == 1 else x
    try:
        return lead.detach().expand(shape).contiguous()
    except RuntimeError:
        return None


def _operand(
    neuron: Neuron,
    times: tuple[Tensor, Tensor] | None,
    units: tuple[int, ...],
    position: tuple[int, ...],
    depth: tuple[int, ...],
) -> _Operand | None:
    """Return the code of an operand whose unit may differ along `units`, its center and offset along `depth`, its gain
    by position; None if they differ along another axis.
    """
    code = neuron.code()
    if code.typical is not None or not neuron.coded:  # gains would have to be known before the input
        return None
    up, down, q, p = (_spread(x, units) for x in (*code.units(), *(times or (None, None))))
    if up is None or down is None or q is None or p is None:
        return None
    constants = {"gain": position, "center": depth, "offset": depth}
    spread: dict[str, Any] = {name: _spread(getattr(code, name), shape) for name, shape in constants.items()}
    if any(getattr(code, name) is not None and value is None for name, value in spread.items()):
        return None
    positive, negative, more, less = (x.expand(depth).contiguous() for x in (up, down, q, p))
    code = code._replace(positive=positive, negative=negative, scale=None, **spread)
    most = code.largest * int(torch.maximum(q, p).max())
    return _Operand(code, (more, less), torch.where(up > 0, up / q, down / p), most)


def _moved_(neuron: Neuron) -> tuple[Tensor, Tensor] | None:
    """Return the values of counts of each sign in units, after the negative step moves to a common one; None without."""
    up, down = torch.broadcast_tensors(*neuron.code().units())
    times = common_units(up.flatten(), down.flatten())
    if times is None:
        return None
    flat = neuron.code()._replace(positive=up.flatten(), negative=down.flatten(), scale=None)
    move_(neuron, flat, times[1] / times[0])
    return times[0].view_as(up), times[1].view_as(up)


class IntegerAttention(nn.Module):
    """Attention of one owner on integers; `forward` is None where its neurons or sizes have no integer form."""

    def __init__(self, q: Neuron, k: Neuron, v: Neuron) -> None:
        super().__init__()
        self.times = tuple(_moved_(neuron) for neuron in (q, k, v))
        self._ready: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ready": None}

    def forward(
        self,
        neurons: tuple[Neuron, Neuron, Neuron, Neuron],
        operands: tuple[Tensor, Tensor, Tensor],
        mask: Tensor | None,
    ) -> Tensor | None:
        """fire(softmax(q·k + mask))·v from the neurons of q, k, probabilities and v, and what they are to fire."""
        if torch.compiler.is_compiling():  # nothing can be tried while a network is traced
            return None
        path, (query, key, value) = kernels.word_path(), operands
        if path is None or not kernels.can_attend(query, key, value):
            return None
        lambdas = tuple(None if n.scale is None else float(n.scale.value) for n in neurons)
        case = (path, lambdas, query.shape[1:], key.shape[1:], value.shape[1:])
        if self._ready is None or self._ready[0] != case:
            self._ready = (case, _prepared(neurons, self.times, query, key, value))
        if self._ready[1] is None:
            return None
        step, code, fires, units = self._ready[1]
        return kernels.attend_integers(query, key, value, mask, step, code, fires, units, path)


def _prepared(
    neurons: tuple[Neuron, Neuron, Neuron, Neuron],
    times: tuple[Any, ...],
    query: Tensor,
    key: Tensor,
    value: Tensor,
) -> tuple[Tensor, SpikeCode, list[tuple[SpikeCode, tuple[Tensor, Tensor]]], kernels.Units] | None:
    (heads, rows, inner), (keys, outer) = query.shape[1:], value.shape[2:]
    q_neuron, k_neuron, fired, v_neuron = neurons
    q = _operand(q_neuron, times[0], (heads, 1, 1), (1, rows, 1), (heads, 1, inner))
    k = _operand(k_neuron, times[1], (heads, 1, 1), (1, 1, keys), (heads, inner, 1))
    v = _operand(v_neuron, times[2], (heads, 1, outer), (1, keys, 1), (heads, 1, outer))
    code, step = fired.code(), fired.code().row_steps() if fired.coded else None
    if q is None or k is None or v is None or step is None:
        return None
    q_offset, v_gain, smallest, largest = q.code.offset, v.code.gain, 1.0, 1
    if v_gain is not None:  # as whole multiples of the smallest
        smallest = float(v_gain.min())
        v_gain = (v_gain / smallest).contiguous()
        largest = int(v_gain.max())
    fits = (
        max(q.most, k.most, v.most, fired.largest * largest) <= kernels.COUNT
        and max(q.most, OFFSET if q_offset is not None else 0) * k.most * inner < 2**31
        and keys * fired.largest * largest * v.most < 2**31
    )
    if not fits:
        return None
    offset = offset_factor = None
    if q_offset is not None:
        size = q_offset.flatten(1).abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / OFFSET
        offset = (q_offset.flatten(1) / size[:, None]).round().contiguous()
        offset_factor = (size * k.unit.flatten()).contiguous()
    units = kernels.Units(
        (q.unit * k.unit).flatten().contiguous(), v_gain, offset, offset_factor,
        (v.unit * smallest).contiguous(), v.code.offset,
    )  # fmt: skip
    fires = [(operand.code, operand.times) for operand in (q, k, v)]
    return step[..., 0] if step.dim() else step, code, fires, units
