"""Products of two spiking operands, counted pair by pair: ECMT's figure, and the cautious double count."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from onespike.energy.columns import READINGS
from onespike.sites import Operand, Product, Site

NEGLIGIBLE = 1e-3
"""In units of one step: a smaller sum of spikes is zero apart from rounding."""


class Sent(NamedTuple):
    """What one operand of a product sends: its additions by reading, and where it sent anything before."""

    product: str
    additions: dict[str, Tensor]
    earlier: Tensor | None


class Pairs:
    """Pairs of spikes: what one operand adds times what the other adds, in each reading of a spike.

    A pair is what the product says it is: two elements that it multiplies, whichever function of torch does so.
    After the first timestep an operand meets everything its partner has sent before. So the pairs of A·B, A·ΣB and
    ΣA·B are counted, for readings in which a sum of spikes is one.
    """

    def __init__(self) -> None:
        self.first: Sent | None = None
        self.second: Sent | None = None
        self.before: dict[tuple[Site, int], Tensor] = {}

    def update(self, operand: Operand, fired: Tensor, output: Tensor) -> dict[str, float] | None:
        """Add one operand; the second operand of a product gives the pairs of both.

        The first may come in blocks of rows: blocks after the second operand give separate pairs.
        """
        product, site = operand.product, operand.site
        if len(product.operands) != 2:
            return None
        call, now, earlier = operand.call, operand.timestep, None
        readings = {name: r for name, r in READINGS.items() if r.over_steps or call is None}
        additions = {name: reading.additions(fired) for name, reading in readings.items()}
        if call is not None:  # several timesteps
            earlier = self.before.pop((site, call), None) if now > 1 else None
            smallest = min(float(s[s > 0].min()) for _, s in operand.neuron().code().populations)
            self.before[site, call] = output.abs() * now > NEGLIGIBLE * smallest
        sent = Sent(site.product, additions, earlier)
        if site.role != next(iter(product.operands)):
            self.second = sent
        else:
            self.first, self.second = sent, self.second if operand.again else None
        first, second = self.first, self.second
        if first is None or second is None or first.product != second.product:
            return None
        self.first = None
        return {
            name: _pairs(product, adds, second.additions[name])
            + (0.0 if second.earlier is None else _pairs(product, adds, second.earlier))
            + (0.0 if first.earlier is None else _pairs(product, first.earlier, second.additions[name]))
            for name, adds in first.additions.items()
        }


def _pairs(product: Product, first: Tensor, second: Tensor) -> float:
    """Return the sum of all results of a product of two operands, without making them where it need not."""
    if product.visible is not None and not product.weighted:  # a mask hides some results
        return float((torch.matmul(first.mT.float(), product.visible.float()).double() * second).sum())
    if product.indices:  # sums over the indices of one operand come first
        return float(torch.einsum(f"{product.indices}->", first.double(), second.double()))
    kind = next(iter(product.operands.values())).dtype
    return float(product.multiply(first.to(kind), second.to(kind)).sum(dtype=torch.float64))
