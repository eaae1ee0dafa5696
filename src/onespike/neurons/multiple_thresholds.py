"""The multi-threshold neuron: one step that equals T steps of integrate-and-fire (Theorem 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from onespike.neurons.base import neuron
from onespike.neurons.coded import CodedNeuron
from onespike.spikes import SpikeCode, fire_function


def multi_threshold(h: Tensor, threshold: Tensor | float, count: int) -> Tensor:
    """clip(⌊h/θ_M⌋, 0, N) for N = `count`, the spikes of eq. 6; the value is θ_M times that.

    >>> multi_threshold(torch.tensor([-1.0, 0.2, 0.25, 0.6, 9.0]), 0.25, 4).tolist()
    [0.0, 0.0, 1.0, 2.0, 4.0]
    """
    return (h / threshold).floor().clamp(0, count)


def dual_multi_threshold(
    x: Tensor,
    positive: Tensor | float,
    negative: Tensor | float,
    initial_positive: Tensor | float,
    initial_negative: Tensor | float,
    count: int,
) -> Tensor:
    """Signed spikes of eq. 38: the branch of x's sign, x + v_M⁺(0) over θ_M⁺ or −x + v_M⁻(0) over θ_M⁻.

    >>> dual_multi_threshold(torch.tensor([-1.0, 0.3]), 0.25, 0.5, 0.125, 0.25, 4).tolist()
    [-2.0, 1.0]
    """
    up = multi_threshold(x + initial_positive, positive, count)
    down = multi_threshold(initial_negative - x, negative, count)
    return torch.where(x < 0, 0.0 - down, up)


@neuron("mtn")
class MultiThreshold(CodedNeuron):
    """o = θ_M·clip(⌊(x + θ_M/2)/θ_M⌋, 0, N) with θ_M = θ/N (eq. 6); positive side only.

    N is the number of levels; their values, the rounding and λ have no effect.

    >>> cell = MultiThreshold(1.0, levels=(1, 2, 3, 4))
    >>> cell
    MultiThreshold(mtn, θ+=1, N=4)
    >>> cell.spikes(torch.tensor([-1.0, 0.1, 0.5, 0.9, 7.0])).tolist()
    [0, 0, 2, 4, 4]
    """

    two_sided = False

    @property
    def largest(self) -> int:
        """N."""
        return len(self.levels)

    def _settle_sides(self) -> None:
        super()._settle_sides()
        self._function = fire_function(tuple(range(1, self.largest + 1)))

    def thresholds(self) -> tuple[Tensor, Tensor]:
        """θ_M = θ/N."""
        return self.positive / self.largest, self.negative / self.largest

    def code(self) -> SpikeCode:
        """Eq. 6 with v_M(0) = θ_M/2: levels 1 … N, with the half inside the quotient."""
        return SpikeCode(*self.active(self.thresholds()), self._function, inside=True)

    def _describe(self) -> str:
        return f"N={self.largest}"


@neuron("dual-mtn")
class DualMultiThreshold(MultiThreshold):
    """o = ±θ_M±·clip(⌊(|x| + θ_M±/2)/θ_M±⌋, 0, N), the branch by the sign of x (eq. 38).

    >>> cell = DualMultiThreshold(1.0, 2.0, levels=(1, 2, 3, 4))
    >>> cell(torch.tensor([-1.0, 0.5])).tolist()
    [-1.0, 0.5]
    """

    two_sided = True
