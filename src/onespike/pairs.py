"""Products of two spiking operands, counted pair by pair: what ECMT states, and the sceptic's double count."""

from __future__ import annotations

import torch
from torch import Tensor

from onespike.neurons import Neuron
from onespike.sites import Site

NEGLIGIBLE = 1e-3
"""Of one step: a sum of spikes that is smaller is zero but for rounding."""


class Pairs:
    """Pairs of matrix products: Σ|y_a||y_b| (`counts`) and pairs of spikes that are both not zero (`nonzero`).

    After the first timestep an operand meets all that its partner has sent before, so the non-zero pairs of
    A·B, A·ΣB and ΣA·B are counted. Only sums along each side of the contracted index are kept.
    """

    def __init__(self) -> None:
        self.left: tuple[str, Tensor, Tensor, Tensor | None] | None = None
        self.right: tuple[str, Tensor, Tensor] | None = None
        self.before: dict[tuple[Site, int], Tensor] = {}

    def update(
        self,
        site: Site,
        neuron: Neuron,
        fired: Tensor,
        output: Tensor,
        now: int,
        call: int | None,
        again: bool,
    ) -> dict[str, float] | None:
        """Take in one operand; the second operand of a product gives the pairs of both.

        The first may come in blocks of rows: those after the second (`again`) give pairs of their own.
        """
        left = site.key.endswith("_lhs")
        if not site.key.startswith("matmul") or fired.dim() < 2:
            return None
        along = -2 if left else -1
        size, active = fired.abs().sum(along, dtype=torch.float64), fired.count_nonzero(along).double()
        earlier = None
        if call is not None:  # there are further timesteps
            earlier = self.before.pop((site, call), None) if now > 1 else None
            smallest = min(float(s[s > 0].min()) for s in neuron.steps() if bool((s > 0).any()))
            self.before[site, call] = (output.abs() * now > NEGLIGIBLE * smallest).double().sum(along)
        if again:
            if self.right is None or self.right[0] != site.product:
                return None
            return {
                "counts": float((size * self.right[1]).sum()),
                "nonzero": float((active * self.right[2]).sum()),
            }
        if left:
            self.left = (site.product, size, active, earlier)
            return None
        if self.left is None or self.left[0] != site.product:
            return None
        (_, left_size, left_active, left_earlier), self.left = self.left, None
        self.right = (site.product, size, active)
        met = active if earlier is None else active + earlier
        pairs = float((left_active * met).sum())
        if left_earlier is not None:
            pairs += float((left_earlier * active).sum())
        return {"counts": float((left_size * size).sum()), "nonzero": pairs}
