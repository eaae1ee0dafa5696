"""The energy ledger: the spikes and operations of every site, and their cost in columns that state what they count."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from onespike import kernels
from onespike.energy.columns import COLUMNS, READINGS, Item, column_of, dense, naf_length, reading_of
from onespike.energy.profiles import Profile, profile
from onespike.errors import UsageError
from onespike.neurons import Neuron
from onespike.sites import Operand, Site
from onespike.spikes import SpikeCode


def add_up(totals: dict[Any, Any], more: Mapping[Any, Any]) -> None:
    for name, number in more.items():
        totals[name] = totals.get(name, 0) + number


@cache
def _worth(largest: int, width: int) -> Tensor:
    """Return the table of a spike of size 0, 1, … below `width`: spikes, active, saturated, and each reading."""
    size = torch.arange(width)
    readings = (reading.additions(size.double()) for reading in READINGS.values())
    return torch.stack([size.double(), (size > 0).double(), (size == largest).double(), *readings]).double()


def _sizes(fired: Tensor) -> Tensor:
    """Return |y| as integers; NaN, which has none, becomes 0, as in `Neuron.spikes`."""
    return fired.abs().to(torch.int32).clamp_(min=0)


def totals(largest: int, fired: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the sums of `_worth` over all spikes, each with its weight."""
    if weights is None:
        flat = kernels.in_memory_order(fired)
        whole = flat.device.type != "cpu" or len(flat) <= kernels.PART
        parts = (flat,) if whole else flat.split(kernels.PART)  # each in the cache
        counted = [torch.bincount(_sizes(part), minlength=largest + 1) for part in parts]
        number = counted[0] if whole else torch.nn.utils.rnn.pad_sequence(counted).sum(1)
    else:
        size, each = _sizes(fired).flatten(), weights.double().expand_as(fired).flatten()
        number = torch.bincount(size, each, minlength=largest + 1)
    # no matrix product: the integer form counts while the network's products are still watched
    # two branches of one neuron may fire in one step: their sum can exceed the largest level
    return (_worth(largest, len(number)) * number.double().cpu()).sum(1)


@lru_cache(maxsize=1024)
def _rows(shape: tuple[int, ...], every: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return one row in `every`, drawn at random but always the same: row numbers, and places in this shape."""
    rows = math.prod(shape)
    with torch.inference_mode(False):  # stored, and then used in any mode
        chosen = torch.randperm(rows, generator=torch.Generator().manual_seed(0))[: rows // every]
        chosen = chosen.sort().values
        return chosen, torch.unravel_index(chosen, shape)


def sample(x: Tensor, every: int) -> Tensor:
    """Return the elements of one row (along the last dimension) in `every`; all of a tensor with few rows.

    >>> sample(torch.zeros(160, 1000), 16).shape, sample(torch.zeros(10, 10), 16).shape
    (torch.Size([10000]), torch.Size([100]))
    """
    if math.prod(x.shape[:-1]) < every:
        return x.flatten()
    numbers, places = _rows(x.shape[:-1], every)
    if x.is_contiguous() and x.device.type == "cpu":  # five times as fast
        return x.view(-1, x.shape[-1]).index_select(0, numbers).flatten()
    return x[places].flatten()


@dataclass
class SiteCount:
    """The counts of one site, summed over all inputs: one line of a ledger."""

    site: Site
    role: str
    spiking: bool
    dense: bool = False  # an edge of the network, multiplied as 8-bit integers
    macs: int = 0
    elements: int = 0
    # additions by reading, as all that follow in dictionaries
    additions: dict[str, float] = field(default_factory=dict)
    later: dict[str, float] = field(default_factory=dict)  # the part of them after the first timestep
    sent: dict[str, float] = field(default_factory=dict)  # without their fan-out: spikes that leave the site
    pairs: dict[str, float] = field(default_factory=dict)
    # the sums of lanes and of both signs at each output
    joined: dict[str, float] = field(default_factory=dict)
    # elements that integers multiply and round: 8-bit edges but pixels, neurons with many levels
    scaled: int = 0
    shifted: int = 0  # elements of neurons with many levels whose steps are reached by shifting and adding
    compared: float = 0.0  # comparisons with thresholds
    measured: float = 0.0  # additions that measure rows with separate steps, and one shift per output
    spikes: float = 0.0
    active: int = 0
    saturated: int = 0
    visits: int = 0
    constant_macs: float = 0.0  # of constant parts of activations with other activations

    def count(
        self, largest: int, fired: Tensor, fan_out: int | Tensor, each: float = 1.0, later: bool = False
    ) -> None:
        """Add spikes, each of which stands for `each` of its size."""
        total = totals(largest, fired)
        if isinstance(fan_out, Tensor):
            weighted = totals(largest, fired, fan_out) * each
        else:
            weighted = total * (each * fan_out)
        spikes, active, saturated, *sent = (total * each).tolist()
        additions = dict(zip(READINGS, weighted[3:].tolist(), strict=True))
        add_up(self.additions, additions)
        add_up(self.sent, dict(zip(READINGS, sent, strict=True)))
        if later:
            add_up(self.later, additions)
        self.spikes += spikes
        self.active += round(active)
        self.saturated += round(saturated)

    def fire(self, code: SpikeCode, elements: int, outputs: int) -> None:
        """Add the fixed cost of firing: comparisons, and the sums that its product joins."""
        if not code.compared:
            self.shifted += elements if code.shifted else 0
            self.scaled += 0 if code.shifted else elements
        self.compared += elements * len(code.levels).bit_length()  # a binary search among the levels
        self.measured += 0 if code.typical is None else elements + outputs
        values = 2 if code.sides == "both" else 1  # of positive and of negative spikes
        for name, reading in READINGS.items():
            lanes = naf_length(code.largest) if reading.by_digits else 1  # each has one sum
            add_up(self.joined, {name: float(outputs * (lanes * values - 1))})

    def merge(self, other: SiteCount) -> None:
        """Add the counts of the same site elsewhere; fields that are not numbers are the same for both."""
        for column in fields(self):
            mine, more = getattr(self, column.name), getattr(other, column.name)
            if isinstance(mine, dict):
                add_up(mine, more)
            elif column.name not in ("site", "role", "spiking", "dense"):
                setattr(self, column.name, mine + more)


@dataclass
class Ledger:
    """Operation counts of all sites over a number of inputs; `metered` fills it.

    Two spiking operands of one product are counted once, at the one that drives (the first: q, and the attention
    weights). `double=True` counts pairs instead: Σ|y_a||y_b|, the nonzero pairs (ECMT), or the pairs of signed
    digits. From the second timestep on both drive, since the product of two sums changes with either.
    """

    blockwise: ClassVar[bool] = True  # whether it may observe attention probabilities in blocks of rows

    sites: dict[Site, SiteCount] = field(default_factory=dict)
    # MACs of analog functions by kind, and the part that an integer network has in its thresholds
    functions: Counter[str] = field(default_factory=Counter)
    folded: Counter[str] = field(default_factory=Counter)
    values: int = 0  # sums that an integer network brings to fixed point, since more than neurons read them
    # MACs of products that ran outside every rule, by module and operation
    unruled: Counter[tuple[str, str]] = field(default_factory=Counter)
    merged: float = 0.0  # MACs of the original that are not made, since tokens are merged
    inputs: int = 0
    timesteps: int = 1
    # for searches: one row of elements in so many is counted; no strict column can be estimated so
    every: int = 1
    seconds: float = 0.0  # spent on counting, to be subtracted from the time of a forward
    padding: Tensor | None = field(default=None, repr=False)  # which tokens of the present batch are real

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
        for site, row in other.sites.items():
            if self.sites.setdefault(site, row) is not row:
                self.sites[site].merge(row)
        self.functions.update(other.functions)
        self.folded.update(other.folded)
        self.values += other.values
        self.merged += other.merged
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
        rows = self.products().values()
        return sum(row.macs for row in rows) + sum(self.unruled.values()) + round(self.merged)

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
            raise UsageError(f"norms and functions are not sampled. Count with every=1 for {column!r}.")
        return entry.rule(self, double)

    def ratio(self, column: str, double: bool = False, prices: Profile | None = None) -> float:
        """Return the energy relative to the original network, in one of the columns.

        NaN where neurons replace ReLUs, so that no count of spikes reaches a product, or an operation has no price.
        """
        if not self.macs:
            raise UsageError("this ledger has counted nothing. Run the network within metered(model) first.")
        if column_of(column).reading is not None and any(site.is_activation for site in self.sites):
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
