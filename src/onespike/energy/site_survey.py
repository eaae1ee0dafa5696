"""Statistics of one site: signal, errors by cause, channels and a histogram."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

BINS = 80
"""Bins of a site's distribution, equally wide in asinh(x / step): linear around zero, logarithmic in the tail."""

OUTLIER = 6.0
"""A channel is an outlier if its root mean square is this many times the median channel's."""


@dataclass
class SiteSurvey:
    """Sums over one site's input x and output o. Squared errors are split by where x lies.

    A channel is an index over which the product sums: a feature of a linear map, an input channel of a convolution.

    Attributes:
        signal: Σx².
        fine: Σ(x−o)² where the levels are consecutive integers (quantization).
        tail: Σ(x−o)² in the sparse levels above them (also quantization).
        clipping: Σ(x−o)² beyond the largest level, or on a side that is off.
        above: elements beyond the calibrated threshold.
        largest: the largest magnitude.
        row_loss: Σ(1 − row sum) over the rows of a softmax site.
        channels: signal, noise and number of spikes of each channel, 3 × channels.
        histogram: elements by asinh(x / step), over ±`span`.
    """

    role: str
    levels: tuple[int, ...]
    steps: tuple[float, float]
    span: float
    elements: int = 0
    signal: float = 0.0
    fine: float = 0.0
    tail: float = 0.0
    clipping: float = 0.0
    above: int = 0
    largest: float = 0.0
    rows: int = 0
    row_loss: float = 0.0
    channels: Tensor = field(default_factory=lambda: torch.zeros(3, 0))
    histogram: Tensor = field(default_factory=lambda: torch.zeros(BINS))

    @property
    def noise(self) -> float:
        return self.fine + self.tail + self.clipping

    @property
    def snr_db(self) -> float:
        """The ratio 10·log10(signal / noise); 99 where nothing is lost."""
        return decibels(self.signal, self.noise)

    @property
    def dead_channels(self) -> float:
        """The share of channels that never fired."""
        return _share(self.channels[2] == 0)

    @property
    def outlier_channels(self) -> float:
        """The share of channels whose root mean square is far above the median."""
        power = self.channels[0]
        return _share(power > OUTLIER**2 * power.median()) if power.numel() else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "snr_db": self.snr_db,
            **{k: getattr(self, k) / (self.noise or 1.0) for k in ("fine", "tail", "clipping")},
            "above": self.above / max(self.elements, 1),
            "largest": self.largest,
            "row_loss": self.row_loss / self.rows if self.rows else None,
            "dead_channels": self.dead_channels,
            "outlier_channels": self.outlier_channels,
            "channels": self.channels.shape[1],
            "levels": list(self.levels),
            "steps": list(self.steps),
            "span": self.span,
            "histogram": [int(n) for n in self.histogram],
        }


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two powers in decibels, within ±99.

    >>> decibels(1.0, 0.01), decibels(1.0, 0.0), decibels(0.0, 1.0)
    (20.0, 99.0, -99.0)
    """
    if not noise:
        return 99.0
    return max(-99.0, min(99.0, 10 * math.log10(signal / noise))) if signal else -99.0


def _share(chosen: Tensor) -> float:
    return float(chosen.double().mean()) if chosen.numel() else 0.0
