"""Uniform quantization as a neuron: the baseline that a spiking network must beat."""

from __future__ import annotations

from torch import Tensor

from onespike.neurons.base import neuron
from onespike.neurons.multiple_thresholds import MultiThreshold


@neuron("uniform")
class Uniform(MultiThreshold):
    """o = Δ·clip(round(x/Δ), −N, N), Δ = max(θ⁺, θ⁻)/N: plain n-bit quantization, half-way away from zero.

    The levels `bits:n` are the 2ⁿ−1 codes above zero of a one-sided site; a signed site has half as many per side.

    >>> import torch
    >>> cell = Uniform(0.5, 1.5, levels=(1, 2, 3, 4, 5, 6, 7))
    >>> cell.spikes(torch.tensor([-9.0, -0.3, 0.2, 0.3, 1.5])).tolist()
    [-3, -1, 0, 1, 3]
    """

    two_sided = True

    @property
    def largest(self) -> int:
        """N: 2ⁿ−1 for one side, 2ⁿ⁻¹−1 for two."""
        return max(len(self.levels) // 2, 1) if all(self._on) else len(self.levels)

    def thresholds(self) -> tuple[Tensor, Tensor]:
        """One step for both signs; a side that is off stays off."""
        step = self.positive.maximum(self.negative) / self.largest
        return step * (self.positive > 0), step * (self.negative > 0)
