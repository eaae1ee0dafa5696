"""Statistics of every site's activations: a ledger that also examines the first few batches closely."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from onespike.energy.ledger import Ledger
from onespike.energy.site_survey import BINS, SiteSurvey
from onespike.neurons import Neuron
from onespike.sites import Operand, Site


def consecutive(levels: tuple[int, ...]) -> int:
    """Return how many levels, from the first on, are consecutive integers.

    >>> consecutive((1, 2, 3, 5, 9))
    3
    """
    return next((i for i, level in enumerate(levels) if level != i + 1), len(levels))


@dataclass
class Survey(Ledger):
    """A ledger of everything, and a `SiteSurvey` of the first `visits` visits of each site.

    >>> from torch import nn
    >>> from onespike import calibrate, convert, metered
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    >>> snn = convert(model, calibrate(model, [x]))
    >>> with metered(snn, Survey()) as survey:
    ...     _ = snn(x)
    >>> list(survey.details)
    ['2:linear0_input']
    """

    visits: int = 4
    details: dict[str, SiteSurvey] = field(default_factory=dict)

    def visit(self, operand: Operand, x: Tensor) -> Tensor:
        output = super().visit(operand, x)
        site, place = operand.site, operand.place
        neuron = operand.neuron(x)
        if isinstance(neuron, Neuron) and self.sites[site].visits <= self.visits and x.numel():
            started = time.perf_counter()
            row = self.details.get(str(site))
            if row is None:
                row = self.details[str(site)] = _empty(neuron, place.roles.get(site.key, ""))
            _add(row, neuron, site, x.detach().float(), output.detach().float())
            self.seconds += time.perf_counter() - started
        return output


def _empty(neuron: Neuron, role: str) -> SiteSurvey:
    code = neuron.code()
    up, down = (float(unit.float().mean()) for unit in code.units())
    return SiteSurvey(role, code.levels, (up, down), math.asinh(2.0 * code.largest))


def _add(row: SiteSurvey, neuron: Neuron, site: Site, x: Tensor, output: Tensor) -> None:
    code = neuron.code()
    (up, down), seen = code.units(), code.coordinate(x)
    step = torch.where(seen >= 0, up, down)
    size, error = seen.abs(), (x - output).square()
    clipped = size > step * row.levels[-1]
    sparse = ~clipped & (size > step * (consecutive(row.levels) + 0.5))
    total, clipping, tail = (
        float(part.sum(dtype=torch.float64)) for part in (error, error * clipped, error * sparse)
    )
    row.elements += x.numel()
    row.signal += float(x.square().sum(dtype=torch.float64))
    row.clipping, row.tail = row.clipping + clipping, row.tail + tail
    row.fine += max(total - clipping - tail, 0.0)
    row.above += int((size > torch.where(seen >= 0, neuron.positive, neuron.negative)).sum())
    row.largest = max(row.largest, float(x.abs().max()))
    if row.role == "softmax":
        rows = x.sum(-1) > 0  # a fully masked row has nothing to lose
        row.rows += int(rows.sum())
        row.row_loss += float((1 - output.sum(-1))[rows].sum(dtype=torch.float64))
    axis = _channel_axis(site, x)
    fired = output != (0.0 if code.offset is None else code.offset)
    sums = torch.stack([_by_channel(part, axis) for part in (x.square(), error, fired)]).cpu()
    if not row.channels.shape[1]:
        row.channels = sums
    elif row.channels.shape == sums.shape:  # sequences of another length have other channels in attention
        row.channels = row.channels + sums
    unit = torch.where(step > 0, step, torch.maximum(up, down)).clamp_min(1e-30)
    row.histogram = (
        row.histogram
        + torch.histc((seen / unit).asinh().clamp(-row.span, row.span), BINS, -row.span, row.span).cpu()
    )


def _channel_axis(site: Site, x: Tensor) -> int:
    """Return the index over which the product sums."""
    if site.operation == "conv":
        return max(-(x.dim() - 1), -x.dim())
    return -2 if site.role == "rhs" and x.dim() > 1 else -1


def _by_channel(x: Tensor, axis: int) -> Tensor:
    return x.double().movedim(axis, 0).flatten(1).sum(1) if x.dim() > 1 else x.double()
