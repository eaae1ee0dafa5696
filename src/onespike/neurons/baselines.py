"""Neurons to compare with: integrate-and-fire, multiple thresholds, uniform quantization, and steps by each token's mean."""

from typing import Any

import torch
from torch import Tensor

from onespike.neurons.base import Neuron, neuron
from onespike.neurons.scale_and_fire import ScaleFire
from onespike.spikes import SpikeCode, fire_function


def integrate_fire_step(x: Tensor, membrane: Tensor, threshold: Tensor | float) -> tuple[Tensor, Tensor]:
    """Run one step of eqs. 1–3: h = v + x, spike = H(h − θ) with H(0) = 1, v = h − θ·spike."""
    latent = membrane + x
    spike = (latent >= threshold).to(latent.dtype)
    return spike, latent - threshold * spike


class _Divided(Neuron):
    """θ is the top of the range: N levels, each θ/N. Their values, the rounding and λ have no effect."""

    two_sided = False
    letter = "N"

    @property
    def largest(self) -> int:
        return len(self.levels)

    def steps(self) -> tuple[Tensor, Tensor]:
        return self.positive / self.largest, self.negative / self.largest

    def _describe(self) -> str:
        return f"{self.letter}={self.largest}"


@neuron("if")
class IntegrateFire(_Divided):
    """o = (θ/T)·Σ spikes of x presented for T steps, v(0) = θ/2 (eqs. 1–4); positive side only.

    T is the number of levels, and θ/T the mean of one spike over T steps.

    >>> cell = IntegrateFire(1.0, levels=(1, 2, 3, 4))
    >>> cell
    IntegrateFire(if, θ+=1, T=4)
    >>> cell.spikes(torch.tensor([-1.0, 0.1, 0.5, 0.9, 7.0])).tolist()
    [0, 0, 2, 4, 4]
    """

    letter = "T"

    def fire(self, size: Tensor, threshold: Tensor) -> Tensor:
        """Return the sum of T steps; only the running sum is kept."""
        membrane = threshold / 2
        total = torch.zeros_like(size)
        for _ in range(self.largest):
            spike, membrane = integrate_fire_step(size, membrane, threshold)
            total = total + spike
        # A NaN never reaches a threshold; the added zero is NaN where the input is.
        return total + size.clamp(max=1) * 0


@neuron("dual-if")
class DualIntegrateFire(IntegrateFire):
    """o = (θ⁺/T)·Σ spikes⁺ − (θ⁻/T)·Σ spikes⁻ (eqs. 35–37): a constant current drives one branch only."""

    two_sided = True

    def step(self, current: Tensor, potential: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Drive one branch per sign of the current, each with its membrane.

        Where both fire in one step, the count is the number of spikes, not their difference.
        """
        parts = torch.stack([current.clamp(min=0), (-current).clamp(min=0)])
        latent = parts if potential is None else potential + parts
        both = (self.positive, self.negative)
        # after the first step, a branch that was off takes the other's threshold
        on = self._on if potential is None else (True, True)
        if not all(self._on):
            both = (both[0].maximum(both[1]),) * 2
        branches = zip(latent, both, on, strict=True)
        fired = torch.stack(
            [self.fire(size, theta) if fires else torch.zeros_like(size) for size, theta, fires in branches]
        )
        value = torch.stack([theta / self.largest * spike for theta, spike in zip(both, fired, strict=True)])
        return torch.where(current < 0, 0 - fired.sum(0), fired.sum(0)), value[0] - value[1], latent - value


@neuron("mtn")
class MultiThreshold(_Divided):
    """o = θ_M·clip(⌊(x + θ_M/2)/θ_M⌋, 0, N) with θ_M = θ/N (eq. 6); positive side only."""

    coded = True

    def _settle_sides(self) -> None:
        super()._settle_sides()
        self._function = fire_function(tuple(range(1, self.largest + 1)), "paper")

    def code(self) -> SpikeCode:
        """Eq. 6 with v_M(0) = θ_M/2: levels 1 … N, with the half inside the quotient."""
        return super().code()._replace(inside=True)


@neuron("dual-mtn")
class DualMultiThreshold(MultiThreshold):
    """o = ±θ_M±·clip(⌊(|x| + θ_M±/2)/θ_M±⌋, 0, N), the branch by the sign of x (eq. 38)."""

    two_sided = True


@neuron("uniform")
class Uniform(MultiThreshold):
    """o = Δ·clip(round(x/Δ), −N, N), Δ = max(θ⁺, θ⁻)/N: plain n-bit quantization, half-way away from zero.

    The levels `bits:n` are the 2ⁿ−1 codes above zero of a one-sided site; a signed site has half as many per side.

    >>> cell = Uniform(0.5, 1.5, levels=(1, 2, 3, 4, 5, 6, 7))
    >>> cell.spikes(torch.tensor([-9.0, -0.3, 0.2, 0.3, 1.5])).tolist()
    [-3, -1, 0, 1, 3]
    """

    two_sided = True

    @property
    def largest(self) -> int:
        """N: 2ⁿ−1 for one side, 2ⁿ⁻¹−1 for two."""
        return max(len(self.levels) // 2, 1) if all(self._on) else len(self.levels)

    def steps(self) -> tuple[Tensor, Tensor]:
        """One step for both signs; a side that is off stays off."""
        step = self.positive.maximum(self.negative) / self.largest
        return step * (self.positive > 0), step * (self.negative > 0)


@neuron("mean")
class MeanFire(ScaleFire):
    """o = V·clip(round(x/V), −N, N), V = λ·θ·mean|x| along the last axis: W8ASpike with θ = 1 and λ = 1/k.

    The count goes out as signed binary digits, the column `binary`. V is no power of two, so that every row costs a
    multiplication, and no kernel and no format has it.

    >>> cell = MeanFire(1.0, 1.0, levels=(1, 2, 3))
    >>> cell.spikes(torch.tensor([[2.0, -2.0], [8.0, 0.0]])).tolist()
    [[1, -1], [2, 0]]
    """

    shifts, affine = False, False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, typical=torch.ones(()), **kwargs)
