"""The code of a site: the values of its spikes, for any neuron and passes.

    o = offset + gain · unit± · y,   y an integer, |y| ≤ largest

The gain of a row is a power of two: fixed by its position, or by the row's own magnitude when it comes, or both. A
baseline takes the magnitude itself.
Ledger, binary lanes, integer inference, exports and the report read this one record.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from onespike.errors import UsageError
from onespike.neurons.fire_functions import power_of_two

FINEST, COARSEST = 2.0**-1, 2.0**14
"""The range by which the steps of a row may differ from the usual ones."""


def row_gain(x: Tensor, typical: Tensor, shifts: bool = True) -> Tensor:
    """2^round(log2(mean|x| / typical)) of each row along the last axis, from ½ to 2¹⁴; what is NaN stays NaN in x / gain.

    Without `shifts` it is the ratio mean|x| / typical itself, which costs a multiplication.

    The power of two nearest in the logarithm is the exponent of √2 times the ratio, so that no logarithm is rounded.

    >>> row_gain(torch.tensor([[1.0, 1.0], [1.0, 2.0], [-8.0, 8.0], [0.0, 0.0]]), torch.tensor(1.0)).flatten().tolist()
    [1.0, 2.0, 8.0, 0.5]
    >>> row_gain(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor(1.0), shifts=False).flatten().tolist()
    [1.5, 1.1754943508222875e-38]
    """
    if not shifts:
        return (x.float().abs().mean(-1, keepdim=True) / typical).clamp(min=torch.finfo(torch.float32).tiny)
    ratio = x.float().abs().mean(-1, keepdim=True) * (2**0.5 / typical)
    return power_of_two(ratio.clamp(FINEST, COARSEST))


class Code(NamedTuple):
    """What one site sends and what it means. Tensors broadcast against the activation.

    Attributes:
        positive: the value of a positive spike; None where that side is off.
        negative: likewise, as a magnitude.
        levels: the magnitudes that it may send, in ascending order.
        center: what is subtracted before the neuron fires; None for nothing.
        gain: a power of two for each row, by which its steps are larger; None for 1.
        offset: what the value starts from; None for 0.
        typical: the mean |x − center| of a usual row; where it is given, `row_gain` multiplies the gain of each row.
        shifts: whether that is a power of two.

    >>> code = Code(torch.tensor(0.5), torch.tensor(0.25), (1, 2, 3), offset=torch.tensor(1.0))
    >>> code.decode(torch.tensor([2, -3, 0])).tolist(), code.largest
    ([2.0, 0.25, 1.0], 3)
    """

    positive: Tensor | None
    negative: Tensor | None
    levels: tuple[int, ...]
    center: Tensor | None = None
    gain: Tensor | None = None
    offset: Tensor | None = None
    typical: Tensor | None = None
    shifts: bool = True

    @property
    def largest(self) -> int:
        """The largest count that it can send."""
        return self.levels[-1]

    @property
    def populations(self) -> list[tuple[int, Tensor]]:
        """(sign, unit) of each side that is on: spikes of one sign with one value."""
        sides = ((1, self.positive), (-1, self.negative))
        return [(sign, unit) for sign, unit in sides if unit is not None]

    @property
    def worths(self) -> int:
        """The number of different spike values: 2 if positive and negative spikes differ."""
        if self.positive is None or self.negative is None:
            return 1
        return 1 if torch.equal(self.positive, self.negative) else 2

    def units(self) -> tuple[Tensor, Tensor]:
        """Both units; 0 for a side that is off."""
        known = self.negative if self.positive is None else self.positive
        nothing = torch.zeros_like(known) if known is not None else torch.zeros(())
        return (
            nothing if self.positive is None else self.positive,
            nothing if self.negative is None else self.negative,
        )

    def decode(self, spikes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the values of signed counts, rounded to `dtype` once."""
        if self.typical is not None:
            raise UsageError(
                "this code's gains depend on the input. Take those of one input first: neuron.settled(x).decode(spikes)."
            )
        count = spikes.float()
        if self.positive is not None and self.negative is not None:
            # One of the products is 0, and eager torch does this ten times faster than a choice by sign.
            value = self.positive * count.clamp(min=0) - self.negative * (-count).clamp(min=0)
        else:
            value = self.populations[0][1] * count
        if self.gain is not None:
            value = value * self.gain
        if self.offset is not None:
            value = value + self.offset
        return value.to(dtype)

    def settled(self, x: Tensor) -> Code:
        """Return the code of this one input, with fixed gains."""
        if self.typical is None:
            return self
        centered = x if self.center is None else x - self.center
        gain = row_gain(centered, self.typical, self.shifts)
        return self._replace(gain=gain if self.gain is None else self.gain * gain, typical=None)

    def coordinate(self, x: Tensor) -> Tensor:
        """Return what the levels see of an activation, in units of the spikes' values: (x − center) / gain."""
        gain = self.settled(x).gain
        x = x if self.center is None else x - self.center
        return x if gain is None else x / gain
