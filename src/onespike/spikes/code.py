"""The code of a site: which spikes an activation fires, and what they are worth.

    y = ±G(|x − center| / (gain·step±) + ½),   o = offset + gain·step±·y,   step± = scale·θ±

Neurons hold this record in their buffers. Ledger, kernels, tuning, integer inference, exports and the report read it.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from onespike.errors import UsageError
from onespike.spikes.fire_functions import FireFunction, power_of_two

HUGE = torch.finfo(torch.float32).max

# Signs: positive and negative inputs against separate thresholds (eqs. 13, 14 and 38), in float32. No `torch.where` on whole
# tensors: eager torch does not vectorize it, and signs are random, so one costs as much as twenty of these operations.


def part(x: Tensor, threshold: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """Return the part of x of this sign as a magnitude, and a threshold above 0 to compare it with.

    Where a threshold with dimensions (one per channel) is 0, that channel is off: its magnitude is 0, which
    fires nothing in any neuron, and NaN·0 is still NaN.
    """
    size = (x * sign).clamp(min=0)
    if threshold.ndim == 0:
        return size, threshold
    on = threshold > 0
    return size.clamp(max=HUGE) * on.float(), torch.where(on, threshold, 1.0)


def magnitude(x: Tensor, positive: Tensor | None, negative: Tensor | None) -> Tensor:
    """Return |x| over the threshold of its sign, by true division; a side that is None gives 0.

    One of the two quotients is always 0, so their sum is exactly the other.

    >>> magnitude(torch.tensor([-3.0, 1.0]), torch.tensor(0.5), torch.tensor(2.0))
    tensor([1.5000, 2.0000])
    """
    sides = [part(x, side, sign) for side, sign in ((positive, 1), (negative, -1)) if side is not None]
    first, *second = (size / threshold for size, threshold in sides)
    return first + second[0] if second else first


def with_sign(x: Tensor, count: Tensor, positive: Tensor | None, negative: Tensor | None) -> Tensor:
    """Return the count with the sign of x. A silent neuron gives +0 on both sides, as its integer spikes do."""
    if negative is None:
        return count
    # 0 − count instead of −count, which would be −0 for a silent neuron.
    return 0.0 - (count if positive is None else count * (-x).sign())


def by_side(
    x: Tensor, positive: Tensor | None, negative: Tensor | None, count: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return signed counts: `count(magnitude, threshold)` of the positive part less that of the negative.

    A side that is None is off. The arguments fix which sides are on, never the data, so
    the function traces.
    """
    up = None if positive is None else count(*part(x, positive, 1))
    down = None if negative is None else count(*part(x, negative, -1))
    if up is None:
        return x * 0 if down is None else 0.0 - down
    return up if down is None else up - down


FINEST, COARSEST = 2.0**-1, 2.0**14  # the range by which the steps of a row may differ from the usual ones


def row_gain(x: Tensor, typical: Tensor, shifts: bool = True) -> Tensor:
    """2^round(log2(mean|x| / typical)) of each row along the last axis, from ½ to 2¹⁴; what is NaN stays NaN in x / gain.

    Without `shifts` it is the ratio mean|x| / typical itself, which costs a multiplication.
    """
    mean = x.float().abs().mean(-1, keepdim=True)
    if not shifts:
        return (mean / typical).clamp(min=torch.finfo(torch.float32).tiny)
    # the exponent of √2 times the ratio is that of the nearest power, and no logarithm is rounded
    return power_of_two((mean * (2**0.5 / typical)).clamp(FINEST, COARSEST))


def few_digits(x: Tensor, digits: int) -> Tensor:
    """Return numbers near x that are sums of this many powers of two, each added or subtracted, in double.

    >>> few_digits(torch.tensor([0.7, 3.0, 5.1, 0.0]), 2).tolist(), few_digits(torch.tensor(0.7), 1).item()
    ([0.75, 3.0, 5.0, 0.0], 0.5)
    """
    total, x = torch.zeros_like(x, dtype=torch.float64), x.double()
    for _ in range(digits):
        mantissa, exponent = (x - total).frexp()
        nearest = exponent - (mantissa.abs() < 0.75).int()
        total = total + mantissa.sign() * torch.ones_like(total).ldexp(nearest)
    return total


MOST_CUTS = 160  # the longest table of thresholds on integers
SHIFTS, SUM_SHIFTS = 2, 3
"""The most powers of two in a factor of neurons, and of sums, so that integers are multiplied by shifting and adding."""


class SpikeCode(NamedTuple):
    """What one site sends and what it means. Tensors broadcast against the activation.

    Attributes:
        positive: θ⁺, the value of a positive spike without the scale; None where that side is off.
        negative: θ⁻ likewise, as a magnitude.
        function: G, from a coordinate to one of its levels.
        scale: λ, a factor of both; None for 1.
        center: what is subtracted before it fires; None for nothing.
        gain: a power of two for each row, by which its steps are larger; None for 1.
        offset: what the value starts from; None for 0.
        typical: the mean |x − center| of a usual row; where it is given, `row_gain` multiplies the gain of each row.
        shifts: whether that is a power of two.
        inside: whether the half is added to the activation (eq. 6 with v(0) = θ/2), not to the quotient (eq. 11):
            the same in exact arithmetic, rounded differently.

    >>> from onespike.spikes.fire_functions import fire_function
    >>> code = SpikeCode(torch.tensor(0.5), torch.tensor(0.25), fire_function((1, 2, 3)), offset=torch.tensor(1.0))
    >>> counts = code.fire(torch.tensor([1.1, -9.0, 0.2]))
    >>> counts.tolist(), code.decode(counts).tolist()
    ([2.0, -3.0, 0.0], [2.0, 0.25, 1.0])
    """

    positive: Tensor | None
    negative: Tensor | None
    function: FireFunction
    scale: Tensor | None = None
    center: Tensor | None = None
    gain: Tensor | None = None
    offset: Tensor | None = None
    typical: Tensor | None = None
    shifts: bool = True
    inside: bool = False

    @property
    def levels(self) -> tuple[int, ...]:
        """The magnitudes that it may send, in ascending order."""
        return self.function.levels

    @property
    def compared(self) -> bool:
        """Whether integers decide by comparisons; with more levels they are scaled and rounded."""
        return len(self.levels) * len(self.populations) < MOST_CUTS

    @property
    def shifted(self) -> bool:
        """Whether scaling to steps is shifting and adding: their reciprocals are sums of few powers of two.

        Two different steps are brought to a common unit on integers, and lose that.
        """
        if self.sides == "both":
            return False
        factors = [1 / step.double()[step > 0] for _, step in self.populations]
        return all(torch.allclose(few_digits(f, SHIFTS), f, rtol=1e-6, atol=0.0) for f in factors)

    @property
    def largest(self) -> int:
        """The largest count that it can send."""
        return self.function.levels[-1]

    @property
    def steps(self) -> tuple[Tensor | None, Tensor | None]:
        """The value of one spike, per side; None where a side is off."""
        if self.scale is None:
            return self.positive, self.negative
        up, down = (None if side is None else self.scale * side for side in (self.positive, self.negative))
        return up, down

    @property
    def populations(self) -> list[tuple[int, Tensor]]:
        """(sign, step) of each side that is on: spikes of one sign with one value."""
        return [(sign, step) for sign, step in zip((1, -1), self.steps, strict=True) if step is not None]

    @property
    def sides(self) -> str:
        """`even` for two equal steps, `both` for two others, `positive` or `negative` for one alone."""
        if self.positive is None or self.negative is None:
            return "positive" if self.negative is None else "negative"
        return "even" if torch.equal(self.positive, self.negative) else "both"

    def units(self) -> tuple[Tensor, Tensor]:
        """Both steps; 0 for a side that is off."""
        up, down = self.steps
        nothing = torch.zeros_like(self.populations[0][1])
        return nothing if up is None else up, nothing if down is None else down

    def row_steps(self) -> Tensor | None:
        """Return the positive steps, [heads, rows] at most, of a code without other constants; else None."""
        step, gain = self.steps[0], self.gain
        if step is None or not (self.center is None and self.offset is None and self.typical is None):
            return None
        for part in (step, gain):
            if part is not None and part.dim() and (part.dim() > 3 or part.shape[-1] > 1):
                return None
        step = step if gain is None else step * gain
        return step[..., 0] if step.dim() else step

    def settled(self, x: Tensor) -> Self:
        """Return the code of this one input, with fixed gains."""
        if self.typical is None:
            return self
        x = x.float() if self.center is None else x.float() - self.center
        gain = row_gain(x, self.typical, self.shifts)
        return self._replace(gain=gain if self.gain is None else self.gain * gain, typical=None)

    def coordinate(self, x: Tensor) -> Tensor:
        """Return what the steps see of an activation: (x − center) / gain, in float32."""
        gain = self.settled(x).gain
        x = x.float() if self.center is None else x.float() - self.center
        return x if gain is None else x / gain

    def fire(self, x: Tensor) -> Tensor:
        """Return the signed counts as float32, NaN for NaN: the definition that every faster form has to equal."""
        return self.fire_coordinate(self.coordinate(x))

    def fire_coordinate(self, x: Tensor) -> Tensor:
        """Return the signed counts of a coordinate, in its precision."""
        (up, down), count = self.steps, self.function
        if self.inside:
            return by_side(x, up, down, lambda size, step: count((size + step / 2) / step))
        return with_sign(x, count(magnitude(x, up, down) + 0.5), up, down)

    def in_range(self, coordinate: Tensor) -> Tensor:
        """Return where the largest count does not clip a coordinate; a side that is off has only count 0."""
        (up, down), reach = self.units(), self.largest + 0.5
        high = torch.where(up > 0, reach * up, down / 2)
        low = torch.where(down > 0, reach * down, up / 2)
        return (coordinate > -low) & (coordinate < high)

    def decode(self, counts: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the values of signed counts, rounded to `dtype` once."""
        if self.typical is not None:
            raise UsageError(
                "this code's gains depend on the input. Take those of one input first: code.settled(x).decode(counts)."
            )
        up, down = self.steps
        count = counts if counts.dtype == torch.float64 else counts.float()
        if up is not None and down is not None:
            # One of the products is 0, and eager torch does this ten times faster than a choice by sign.
            value = up * count.clamp(min=0) - down * (-count).clamp(min=0)
        else:
            value = self.populations[0][1] * count
        if self.gain is not None:
            value = value * self.gain
        if self.offset is not None:
            value = value + self.offset
        return value.to(dtype)
