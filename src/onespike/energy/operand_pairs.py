"""Products of two spiking operands, counted pair by pair: ECMT's figure, and the cautious double count."""

from __future__ import annotations

import torch
from torch import Tensor

from onespike.energy.columns import READINGS
from onespike.sites import Operand, Site

NEGLIGIBLE = 1e-3
"""In units of one step: a smaller sum of spikes is zero apart from rounding."""


class Pairs:
    """Pairs of matrix products: what one operand adds times what the other adds, in each reading of a spike.

    After the first timestep an operand meets everything its partner has sent before. So the pairs of A·B, A·ΣB and
    ΣA·B are counted, for readings in which a sum of spikes is one. Only sums along each side of the contracted index
    are kept.
    """

    def __init__(self) -> None:
        self.left: tuple[str, dict[str, Tensor], Tensor | None] | None = None
        self.right: tuple[str, dict[str, Tensor]] | None = None
        self.before: dict[tuple[Site, int], Tensor] = {}

    def update(self, operand: Operand, fired: Tensor, output: Tensor) -> dict[str, float] | None:
        """Add one operand; the second operand of a product gives the pairs of both.

        The first may come in blocks of rows: blocks after the second operand give separate pairs.
        """
        site, place = operand.site, operand.place
        if site.operation != "matmul" or fired.dim() < 2:
            return None
        left, now = site.role == "lhs", place.now
        along = -2 if left else -1
        several = place.clock is not None  # timesteps
        visible = None if several or operand.product.weighted else operand.product.visible
        sums = {
            name: _met(reading.additions(fired), left, visible)
            for name, reading in READINGS.items()
            if reading.over_steps or not several
        }
        earlier = None
        if several:
            call = place.clock.calls.get((site.owner, site.key), 1)
            earlier = self.before.pop((site, call), None) if now > 1 else None
            smallest = min(float(s[s > 0].min()) for _, s in place[site.key].code().populations)
            self.before[site, call] = (output.abs() * now > NEGLIGIBLE * smallest).double().sum(along)
        if operand.again:
            if self.right is None or self.right[0] != site.product:
                return None
            return _products(sums, self.right[1])
        if left:
            self.left = (site.product, sums, earlier)
            return None
        if self.left is None or self.left[0] != site.product:
            return None
        (_, first, first_earlier), self.left = self.left, None
        self.right = (site.product, sums)
        found = _products(first, sums)
        for name, pairs in found.items():
            before = 0.0 if earlier is None else float((first[name] * earlier).sum())
            after = 0.0 if first_earlier is None else float((first_earlier * sums[name]).sum())
            found[name] = pairs + before + after
        return found


def _met(added: Tensor, left: bool, visible: Tensor | None) -> Tensor:
    """Return what one operand adds along its side of the contracted index; under a mask, per key or query."""
    if visible is None:
        return added.sum(-2 if left else -1, dtype=torch.float64)
    return torch.matmul(added.mT.float(), visible.float()).double() if left else added.double()


def _products(first: dict[str, Tensor], second: dict[str, Tensor]) -> dict[str, float]:
    return {column: float((first[column] * second[column]).sum()) for column in first}
