"""The counts of one site: one line of a ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from onespike.energy.columns import READINGS
from onespike.energy.spike_counts import Tally
from onespike.sites import Site
from onespike.spikes import SpikeCode


@dataclass
class SiteCount:
    """The counts of one site, summed over all inputs. `additions` and `later` are by reading."""

    site: Site
    role: str
    spiking: bool
    macs: int = 0
    elements: int = 0
    additions: dict[str, float] = field(default_factory=dict)
    pairs: dict[str, float] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)
    """Spikes that leave the site, by reading: the additions without their fan-out."""
    joined: dict[str, float] = field(default_factory=dict)
    """Additions that join the sums of lanes and of both signs at each output, by reading."""
    compared: float = 0.0
    """Comparisons with thresholds."""
    measured: float = 0.0
    """Additions that measure rows with separate steps, and one shift per output."""
    spikes: float = 0.0
    active: int = 0
    saturated: int = 0
    visits: int = 0
    later: dict[str, float] = field(default_factory=dict)
    """The part of the additions that came after the first timestep."""
    constant_macs: float = 0.0

    def take(self, additions: Mapping[str, float], total: Tally, later: bool = False) -> None:
        """Add additions, and numbers of spikes, active and saturated neurons."""
        for reading, more in additions.items():
            self.additions[reading] = self.additions.get(reading, 0.0) + more
            self.sent[reading] = self.sent.get(reading, 0.0) + total.additions[reading]
            if later:
                self.later[reading] = self.later.get(reading, 0.0) + more
        self.spikes += total.spikes
        self.active += round(total.active)
        self.saturated += round(total.saturated)

    def fire(self, code: SpikeCode, elements: int, outputs: int, by_row: bool = False) -> None:
        """Add the fixed cost of firing: comparisons, and the sums that its product joins."""
        self.compared += elements * len(code.levels).bit_length()  # a binary search among the levels
        self.measured += elements + outputs if by_row else 0
        for name, reading in READINGS.items():
            sums = reading.lanes(code.largest) * code.worths
            self.joined[name] = self.joined.get(name, 0.0) + outputs * (sums - 1)

    def merge(self, other: SiteCount) -> None:
        """Add the counts of the same site elsewhere; fields that are not numbers are the same for both."""
        for column in fields(self):
            mine, more = getattr(self, column.name), getattr(other, column.name)
            if isinstance(mine, dict):
                mine |= {name: mine.get(name, 0.0) + number for name, number in more.items()}
            elif column.name not in ("site", "role", "spiking"):
                setattr(self, column.name, mine + more)
