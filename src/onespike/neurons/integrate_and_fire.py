"""Integrate-and-fire with soft reset, one spike per step: the comparison for a single step."""

from __future__ import annotations

import torch
from torch import Tensor

from onespike.neurons.base import Neuron, neuron


def integrate_fire_step(x: Tensor, membrane: Tensor, threshold: Tensor | float) -> tuple[Tensor, Tensor]:
    """Run one step of eqs. 1–3: h = v + x, spike = H(h − θ) with H(0) = 1, v = h − θ·spike."""
    latent = membrane + x
    spike = (latent >= threshold).to(latent.dtype)
    return spike, latent - threshold * spike


def integrate_fire(x: Tensor, threshold: Tensor | float, initial: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return spikes in {0, 1} for currents x of shape [T, …], and the membrane v(T) (eqs. 1–4).

    The output of eq. 4 is θ times the mean of the spikes over T.

    >>> spikes, membrane = integrate_fire(torch.tensor([0.5, 0.5, 0.5, 0.5]), 1.0, 0.5)
    >>> spikes.tolist(), membrane.item()
    ([1.0, 0.0, 1.0, 0.0], 0.5)
    """
    membrane = torch.zeros_like(x[0]) + initial
    spikes = []
    for current in x:
        spike, membrane = integrate_fire_step(current, membrane, threshold)
        spikes.append(spike)
    return torch.stack(spikes), membrane


def dual_integrate_fire(
    x: Tensor,
    positive: Tensor | float,
    negative: Tensor | float,
    initial_positive: Tensor | float,
    initial_negative: Tensor | float,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """`integrate_fire` of max(x, 0) and of −min(x, 0), with one threshold each (eqs. 35–37).

    Both branches may spike in the same step, so their (spikes, membrane) are returned separately; the signed
    output is θ⁺·spikes⁺ − θ⁻·spikes⁻.

    >>> up, down = dual_integrate_fire(torch.tensor([1.0, -1.0]), 1.0, 2.0, 0.5, 1.0)
    >>> up[0].tolist(), down[0].tolist()
    ([1.0, 0.0], [0.0, 1.0])
    """
    return (
        integrate_fire(x.clamp(min=0), positive, initial_positive),
        integrate_fire((-x).clamp(min=0), negative, initial_negative),
    )


@neuron("if")
class IntegrateFire(Neuron):
    """o = (θ/T)·Σ spikes of x presented for T steps, v(0) = θ/2 (eqs. 1–4); positive side only.

    T is the number of levels; their values, the rounding and λ have no effect.

    >>> cell = IntegrateFire(1.0, levels=(1, 2, 3, 4))
    >>> cell
    IntegrateFire(if, θ+=1, T=4)
    >>> cell.spikes(torch.tensor([-1.0, 0.1, 0.5, 0.9, 7.0])).tolist()
    [0, 0, 2, 4, 4]
    """

    two_sided = False

    @property
    def largest(self) -> int:
        """T: one spike per step."""
        return len(self.levels)

    def steps(self) -> tuple[Tensor, Tensor]:
        """θ/T: the mean of one spike over T steps."""
        return self.positive / self.largest, self.negative / self.largest

    def fire(self, size: Tensor, threshold: Tensor) -> Tensor:
        """Return the sum of T steps; only the running sum is kept."""
        membrane = threshold / 2
        total = torch.zeros_like(size)
        for _ in range(self.largest):
            spike, membrane = integrate_fire_step(size, membrane, threshold)
            total = total + spike
        # A NaN never reaches a threshold; the added zero is NaN where the input is.
        return total + size.clamp(max=1) * 0

    def _describe(self) -> str:
        return f"T={self.largest}"


@neuron("dual-if")
class DualIntegrateFire(IntegrateFire):
    """o = (θ⁺/T)·Σ spikes⁺ − (θ⁻/T)·Σ spikes⁻ (eqs. 35–37): a constant current drives one branch only.

    >>> cell = DualIntegrateFire(1.0, 2.0, levels=(1, 2, 3, 4))
    >>> cell(torch.tensor([-1.0, 0.5])).tolist()
    [-1.0, 0.5]
    """

    two_sided = True

    def step(self, current: Tensor, potential: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Drive one branch per sign of the current, each with its membrane.

        Where both fire in one step, the count is the number of spikes, not their difference.
        """
        parts = torch.stack([current.clamp(min=0), (-current).clamp(min=0)])
        latent = parts if potential is None else potential + parts
        both = self.thresholds()
        on = (
            self._on if potential is None else (True, True)
        )  # a branch that was off takes the other's threshold
        if not all(self._on):
            both = (both[0].maximum(both[1]),) * 2
        fired = torch.stack(
            [
                self.fire(size, threshold) if fires else torch.zeros_like(size)
                for size, threshold, fires in zip(latent, both, on, strict=True)
            ]
        )
        value = torch.stack([theta / self.largest * spike for theta, spike in zip(both, fired, strict=True)])
        signed = torch.where(current < 0, 0 - fired.sum(0), fired.sum(0))
        return signed, value[0] - value[1], latent - value
