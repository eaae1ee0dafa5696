"""The energy ledger: the counts of every site, and their cost in columns that state what they count."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from onespike.energy.columns import COLUMNS, READINGS, Item, column_of, dense, reading_of
from onespike.energy.profiles import Profile, profile
from onespike.energy.spike_counts import SiteCount
from onespike.errors import UsageError
from onespike.neurons import Neuron
from onespike.sites import Operand, Site


@dataclass
class Ledger:
    """Operation counts of all sites over a number of inputs; `metered` fills it.

    Two spiking operands of one product are counted once, at the one that drives (the first: q, and the attention
    weights). `double=True` counts pairs instead: Σ|y_a||y_b|, the nonzero pairs (ECMT), or the pairs of signed
    digits. From the second timestep on both drive, since the product of two sums changes with either.
    """

    blockwise: ClassVar[bool] = True
    """Whether it may observe attention probabilities in blocks of rows."""

    sites: dict[Site, SiteCount] = field(default_factory=dict)
    functions: Counter[str] = field(default_factory=Counter)
    """MACs of analog functions by kind."""
    folded: Counter[str] = field(default_factory=Counter)
    """The part of them that an integer network has in its thresholds."""
    values: int = 0
    """Sums of products that an integer network brings to fixed point, since more than neurons read them."""
    unruled: Counter[tuple[str, str]] = field(default_factory=Counter)
    """MACs of products that ran outside every rule, by module and operation."""
    inputs: int = 0
    timesteps: int = 1
    every: int = 1
    """Count one row of elements in `every`, and multiply: an estimate without the column `strict`, for searches."""
    seconds: float = 0.0
    """Time spent on counting, to be subtracted from the time of a forward."""
    padding: Tensor | None = field(default=None, repr=False)
    """Which tokens of the present batch are real: the others are not counted."""

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Add the time within this context to `seconds`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started

    def observe(self, operand: Operand, neuron: Neuron, x: Tensor, fired: Tensor, output: Tensor) -> None:
        """See what a neuron got, fired and passed on; a plain ledger has counted it already."""

    def merge(self, other: Ledger) -> None:
        """Add what another ledger has counted over other inputs."""
        for site, row in other.sites.items():
            if self.sites.setdefault(site, row) is not row:
                self.sites[site].merge(row)
        self.functions.update(other.functions)
        self.folded.update(other.folded)
        self.values += other.values
        self.unruled.update(other.unruled)
        self.inputs += other.inputs
        self.timesteps = max(self.timesteps, other.timesteps)
        self.seconds += other.seconds

    def products(self) -> dict[str, SiteCount]:
        """Each product with the site that drives it: its first spiking operand, or its first operand."""
        drivers: dict[str, SiteCount] = {}
        for row in self.sites.values():
            if not drivers.setdefault(row.site.product, row).spiking and row.spiking:
                drivers[row.site.product] = row
        return drivers

    @property
    def macs(self) -> int:
        """All synaptic multiply-accumulates of the original network."""
        return sum(row.macs for row in self.products().values()) + sum(self.unruled.values())

    @property
    def analog_products(self) -> int:
        """Multiply-accumulates of products in floats, without a spiking operand."""
        rows = self.products().values()
        return sum(row.macs for row in rows if not row.spiking and not row.dense) + sum(self.unruled.values())

    @property
    def edge_products(self) -> int:
        """Multiply-accumulates of 8-bit integers at the edges of the network."""
        return sum(row.macs for row in self.products().values() if row.dense)

    @property
    def analog_share(self) -> float:
        """The share of the original's MACs that does not spike; most columns leave it out."""
        return (self.analog_products + self.edge_products) / max(self.macs, 1)

    @property
    def head_share(self) -> float:
        """The output layer's share of the original's MACs: over half in a small language model."""
        return sum(row.macs for row in self.products().values() if row.role == "head") / max(self.macs, 1)

    def beyond(self, reading: str) -> float:
        """Return the pairs of spikes beyond the additions of the driving operand, where a product has more pairs."""
        rows = (row for row in self.products().values() if reading in row.pairs)
        return sum(max(row.pairs[reading] - row.additions[reading], 0.0) for row in rows)

    def events(self, reading: str) -> float:
        """Return the spikes that leave their sites."""
        return sum(row.sent.get(reading, 0.0) for row in self.sites.values())

    def accumulates(self, column: str, double: bool = False) -> float:
        """Return the spike-driven additions of all products, as a column reads a spike."""
        reading = reading_of(column)
        rows, name = [row for row in self.products().values() if row.spiking], reading.name
        if double:
            if self.every > 1:
                raise UsageError("pairs of spikes are not sampled. Count with every=1.")
            if not reading.over_steps and any(row.later for row in rows):
                others = " or ".join(repr(r.name) for r in READINGS.values() if r.over_steps)
                raise UsageError(f"pairs of {name} are counted for one timestep. Take column {others}.")
            return sum(row.pairs.get(name, row.additions.get(name, 0.0)) for row in rows)
        drivers = {row.site for row in rows}
        later = sum(row.later.get(name, 0.0) for site, row in self.sites.items() if site not in drivers)
        return sum(row.additions.get(name, 0.0) for row in rows) + later

    def items(self, column: str, double: bool = False) -> list[Item]:
        """Return the operations that a column charges, by purpose."""
        entry = column_of(column)
        if entry.strict_of and self.every > 1:
            raise UsageError(
                f"norms and activation functions are not sampled. Count with every=1 for {column!r}."
            )
        return entry.rule(self, double)

    def ratio(self, column: str, double: bool = False, prices: Profile | None = None) -> float:
        """Return the energy relative to the original network, in one of the columns.

        NaN where neurons replace ReLUs: what reaches a product is then no longer a count of spikes. Also NaN
        where the profile has no price for an operation of the column.
        """
        entry = column_of(column)
        if not self.macs:
            raise UsageError("this ledger has counted nothing. Run the network within metered(model) first.")
        if entry.reading is not None and any(site.is_activation for site in self.sites):
            return math.nan
        return _energy_pj(self.items(column, double), prices) / self.original_pj(prices)

    def original_pj(self, prices: Profile | None = None) -> float:
        """Return the energy of the original network for everything that was counted."""
        return _energy_pj(dense("float32", self), prices)

    def parts(self, column: str, prices: Profile | None = None) -> dict[str, float]:
        """Return the parts of a column's ratio by purpose; parts that cost nothing are left out."""
        if math.isnan(self.ratio(column, prices=prices)):
            return {}
        whole = self.original_pj(prices)
        parts = {item.name: _energy_pj([item], prices) / whole for item in self.items(column)}
        return {name: part for name, part in parts.items() if part}

    def ratios(self, prices: Profile | None = None) -> dict[str, float]:
        return {column: self.ratio(column, prices=prices) for column in COLUMNS}

    def table(self) -> list[dict[str, Any]]:
        """Return one row per site: MACs, accumulates, firing rates; products outside every rule come last."""
        drivers = {row.site for row in self.products().values()}
        unruled = [
            SiteCount(Site(owner, operation.replace(".", "::")), "", False, macs=macs)
            for (owner, operation), macs in self.unruled.items()
            if macs  # products of unknown size are in the table of sites alone
        ]
        share = profile().price("float32 add") / self.original_pj() if self.macs else 0.0
        return [
            {
                "site": str(row.site),
                "spiking": row.spiking,
                "dense": row.dense,
                "drives": row.spiking and row.site in drivers,
                "macs": row.macs,
                **{reading: row.additions.get(reading, 0.0) for reading in READINGS},
                "ratio": row.additions.get("counts", 0.0) * share if row.site in drivers else 0.0,
                "spikes per image": row.spikes / max(self.inputs, 1),
                "events per image": row.active / max(self.inputs, 1),
                "spikes per neuron": row.spikes / max(row.elements, 1),
                "active share": row.active / max(row.elements, 1),
                "saturated share": row.saturated / max(row.elements, 1),
            }
            for row in [*self.sites.values(), *unruled]
        ]


def or_none(ratio: float) -> float | None:
    """Return a ratio for JSON: None where a column has none."""
    return None if math.isnan(ratio) else ratio


def _energy_pj(items: Iterable[Item], prices: Profile | None) -> float:
    """Return the cost of the operations; those that do not occur need no price."""
    prices = prices or profile()
    return sum((item.number * prices.price(item.operation) for item in items if item.number), 0.0)
