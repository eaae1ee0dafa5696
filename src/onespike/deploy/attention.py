"""Integer attention: counts of q, k, probabilities and v as 16-bit integers, both products summed exactly.

    q·kᵀ = u_q·u_k·gain_i·gain_j·(y_q·y_k) + u_k·gain_j·(offset_q·y_k) + what is the same for all keys
    A·v  = step_i·(u_v·(A·y_v) + offset_v·ΣA)

A row's constant does not change its softmax. q's offset is rounded to whole numbers, like weights. Gains of v, which
are inside the sum, are whole multiples of the smallest and multiply the probabilities' counts, and v's own if these
would be too large.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from onespike import kernels
from onespike.deploy.folding import common_units
from onespike.deploy.products import move_, scale_of
from onespike.neurons import Neuron
from onespike.spikes import SpikeCode

OFFSET = 2**13 - 1
"""The largest whole number of q's offset: 64 of them times the largest counts stay below 2³¹."""


def _spread(x: Any, shape: tuple[int, ...]) -> Any:
    """Return a tensor in this shape, to which it broadcasts but for leading axes of 1; RuntimeError if it cannot."""
    if x is None:
        return None
    lead = x.reshape(*x.shape[x.dim() - len(shape) :]) if x.dim() > len(shape) and x.shape[0] == 1 else x
    return lead.detach().expand(shape).contiguous()


class _Operand(NamedTuple):
    """One operand: its code with tensors as the kernel takes them, the units of its counts, and the largest of them."""

    code: SpikeCode
    times: tuple[Tensor, Tensor]
    unit: Tensor
    most: int


def _operand(code: SpikeCode, times: Any, units: Any, position: Any, depth: Any) -> _Operand:
    """Return an operand whose unit may differ along `units`, its center and offset along `depth`, its gain by position."""
    up, down, q, p = (_spread(x, units) for x in (*code.units(), *times))
    positive, negative, more, less = (x.expand(depth).contiguous() for x in (up, down, q, p))
    code = code._replace(
        positive=positive, negative=negative, scale=None, gain=_spread(code.gain, position),
        center=_spread(code.center, depth), offset=_spread(code.offset, depth),
    )  # fmt: skip
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


def _reach(fired: SpikeCode, step: Tensor, keys: int) -> tuple[int, int]:
    """Return the largest count of a probability, which is at most 1, and a bound for their sum in one row."""
    least, function = float(step.min()), fired.function
    whole = 1 / least if least > 0 else math.inf
    count = int(function(torch.tensor(whole + 1)))
    # a count is largest beside its probability where it jumps; sums of rounded probabilities are 1 within a hundredth
    most = max(level / (bound - 0.5) for level, bound in zip(function.levels, function.bounds, strict=True))
    return count, int(min(keys * count, 1.01 * most * whole + 1))


class IntegerAttention(nn.Module):
    """Attention of one owner on integers; `forward` is None where its neurons or sizes have no integer form."""

    def __init__(self, q: Neuron, k: Neuron, v: Neuron) -> None:
        super().__init__()
        self.times = tuple(_moved_(neuron) for neuron in (q, k, v))
        self._ready: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ready": None}

    def forward(
        self, neurons: tuple[Neuron, ...], operands: tuple[Tensor, Tensor, Tensor], mask: Tensor | None
    ) -> Tensor | None:
        """fire(softmax(q·k + mask))·v from the neurons of q, k, probabilities and v, and what they are to fire."""
        if torch.compiler.is_compiling():  # nothing can be tried while a network is traced
            return None
        path = kernels.word_path()
        if path is None or not kernels.can_attend(*operands):
            return None
        case = (path, *map(scale_of, neurons), *(x.shape[1:] for x in operands))
        if self._ready is None or self._ready[0] != case:
            self._ready = (case, self._prepared(neurons, *operands))
        prepared = self._ready[1]
        return None if prepared is None else kernels.attend_integers(operands, mask, path, *prepared)

    def _prepared(
        self, neurons: tuple[Neuron, ...], query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, SpikeCode, list[tuple[SpikeCode, tuple[Tensor, Tensor]]], kernels.Units] | None:
        """Return what the kernel takes: the step and the code of probabilities, codes of operands, and units."""
        (heads, rows, inner), (keys, outer) = query.shape[1:], value.shape[2:]
        if None in self.times or not all(neuron.coded for neuron in neurons):
            return None
        codes = [neuron.code() for neuron in neurons]
        fired = codes.pop(2)
        step = fired.row_steps()
        # gains would have to be known before the input
        if step is None or any(code.typical is not None for code in codes):
            return None
        (q_code, k_code, v_code), (q_times, k_times, v_times) = codes, self.times
        try:
            q = _operand(q_code, q_times, (heads, 1, 1), (1, rows, 1), (heads, 1, inner))
            k = _operand(k_code, k_times, (heads, 1, 1), (1, 1, keys), (heads, inner, 1))
            v = _operand(v_code, v_times, (heads, 1, outer), (1, keys, 1), (heads, 1, outer))
        except RuntimeError:  # something differs along another axis
            return None
        q_offset, v_gain, smallest, largest, most = q.code.offset, v.code.gain, 1.0, 1, v.most
        rest: Tensor | None = None
        count, total = _reach(fired, step, keys)
        if v_gain is not None:  # as whole multiples of the smallest
            smallest = float(v_gain.min())
            multiples = v_gain / smallest
            # probabilities take as much as their 16 bits hold, the counts of v take the rest
            v_gain = multiples.clamp(max=2.0 ** int(math.log2(max(kernels.COUNT // count, 1))))
            rest = (multiples / v_gain).contiguous()
            largest, most = int(v_gain.max()), v.most * int(rest.max())
        fits = (
            max(q.most, k.most, most, count * largest) <= kernels.COUNT
            and max(q.most, OFFSET if q_offset is not None else 0) * k.most * inner < 2**31
            and total * largest * most < 2**31
        )
        if not fits:
            return None
        offset = offset_factor = None
        if q_offset is not None:
            size = q_offset.flatten(1).abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / OFFSET
            offset = (q_offset.flatten(1) / size[:, None]).round().contiguous()
            offset_factor = (size * k.unit.flatten()).contiguous()
        units = kernels.Units(
            (q.unit * k.unit).flatten().contiguous(), v_gain, rest, offset, offset_factor,
            (v.unit * smallest).contiguous(), v.code.offset,
        )  # fmt: skip
        return step, fired, [(operand.code, operand.times) for operand in (q, k, v)], units
