"""Statistics of sites: signal, errors by cause, channels and a histogram, over the first few batches of a ledger."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from onespike.energy.ledger import Ledger
from onespike.neurons import Neuron
from onespike.sites import Operand, Site

BINS = 80  # bins of a site, equally wide in asinh(x / step): linear around zero, logarithmic in the tail
OUTLIER = 6.0  # a channel is an outlier if its root mean square is this many times the median channel's


@dataclass
class SiteSurvey:
    """Sums over one site's input x and output o. Squared errors Σ(x−o)² are split by where x lies."""

    role: str
    levels: tuple[int, ...]
    steps: tuple[float, float]
    span: float
    elements: int = 0
    signal: float = 0.0  # Σx²
    fine: float = 0.0  # errors where levels are consecutive integers
    tail: float = 0.0  # in the sparse levels above them
    clipping: float = 0.0  # beyond the largest level, or on a side that is off
    above: int = 0  # elements beyond the calibrated threshold
    largest: float = 0.0
    rows: int = 0
    row_loss: float = 0.0  # Σ(1 − row sum) of a softmax site
    # signal, noise and spikes of each index over which the product sums, such as an input channel of a convolution
    channels: Tensor = field(default_factory=lambda: torch.zeros(3, 0))
    # elements by asinh(x / step), over ±`span`
    histogram: Tensor = field(default_factory=lambda: torch.zeros(BINS))

    def add(self, neuron: Neuron, site: Site, x: Tensor, output: Tensor) -> None:
        code = neuron.code()
        (up, down), seen = code.units(), code.coordinate(x)
        step = torch.where(seen >= 0, up, down)
        size, error = seen.abs(), (x - output).square()
        clipped = size > step * self.levels[-1]
        consecutive = sum(level == place for place, level in enumerate(self.levels, 1))
        sparse = ~clipped & (size > step * (consecutive + 0.5))
        total, clipping, tail = (
            float(part.sum(dtype=torch.float64)) for part in (error, error * clipped, error * sparse)
        )
        self.elements += x.numel()
        self.signal += float(x.square().sum(dtype=torch.float64))
        self.clipping, self.tail = self.clipping + clipping, self.tail + tail
        self.fine += max(total - clipping - tail, 0.0)
        self.above += int((size > torch.where(seen >= 0, neuron.positive, neuron.negative)).sum())
        self.largest = max(self.largest, float(x.abs().max()))
        if self.role == "softmax":
            rows = x.sum(-1) > 0  # a fully masked row has nothing to lose
            self.rows += int(rows.sum())
            self.row_loss += float((1 - output.sum(-1))[rows].sum(dtype=torch.float64))
        # the index over which the product sums
        axis = 1 - x.dim() if site.operation == "conv" else -2 if site.role == "rhs" and x.dim() > 1 else -1
        fired = output != (0.0 if code.offset is None else code.offset)
        sums = torch.stack([x.square(), error, fired]).double()
        sums = (sums.movedim(axis, 1).flatten(2).sum(2) if x.dim() > 1 else sums).cpu()
        if not self.channels.shape[1]:
            self.channels = sums
        elif self.channels.shape == sums.shape:  # attention over another length has other channels
            self.channels = self.channels + sums
        unit = torch.where(step > 0, step, torch.maximum(up, down)).clamp_min(1e-30)
        places = (seen / unit).asinh().clamp(-self.span, self.span)
        self.histogram = self.histogram + torch.histc(places, BINS, -self.span, self.span).cpu()

    @property
    def noise(self) -> float:
        return self.fine + self.tail + self.clipping

    @property
    def snr_db(self) -> float:
        """The ratio 10·log10(signal / noise); 99 where nothing is lost."""
        return decibels(self.signal, self.noise)

    def to_dict(self) -> dict[str, Any]:
        power = self.channels[0]
        return {
            "role": self.role,
            "snr_db": self.snr_db,
            **{k: getattr(self, k) / (self.noise or 1.0) for k in ("fine", "tail", "clipping")},
            "above": self.above / max(self.elements, 1),
            "largest": self.largest,
            "row_loss": self.row_loss / self.rows if self.rows else None,
            "dead_channels": float((self.channels[2] == 0).double().mean()),  # those that never fired
            "outlier_channels": float((power > OUTLIER**2 * power.median()).double().mean()),
            "channels": self.channels.shape[1],
            "levels": list(self.levels),
            "steps": list(self.steps),
            "span": self.span,
            "histogram": [int(n) for n in self.histogram],
        }


@dataclass
class Survey(Ledger):
    """A ledger of everything, and a `SiteSurvey` of the first `visits` visits of each site."""

    visits: int = 4
    details: dict[str, SiteSurvey] = field(default_factory=dict)

    def observe(self, operand: Operand, neuron: Neuron, x: Tensor, fired: Tensor, output: Tensor) -> None:
        row, name = self.sites[operand.site], str(operand.site)
        if row.visits <= self.visits and x.numel():
            if name not in self.details:
                code = neuron.code()
                up, down = (float(unit.float().mean()) for unit in code.units())
                span = math.asinh(2.0 * code.largest)
                self.details[name] = SiteSurvey(row.role, code.levels, (up, down), span)
            self.details[name].add(neuron, operand.site, x.detach().float(), output.detach().float())


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two powers in decibels, within ±99.

    >>> decibels(1.0, 0.01), decibels(1.0, 0.0), decibels(0.0, 1.0)
    (20.0, 99.0, -99.0)
    """
    if not noise:
        return 99.0
    return max(-99.0, min(99.0, 10 * math.log10(signal / noise))) if signal else -99.0
