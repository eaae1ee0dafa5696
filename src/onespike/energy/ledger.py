"""The energy ledger: the cost of every site's spikes, in columns that state what they count."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from onespike.conversion.attach import Neurons
from onespike.energy.columns import COLUMNS, READINGS, Item, column_of, original, reading_of
from onespike.energy.operand_pairs import Pairs
from onespike.energy.profiles import Profile, profile
from onespike.energy.site_count import SiteCount
from onespike.energy.spike_counts import sample, totals, totals_of
from onespike.errors import UsageError
from onespike.neurons import Neuron
from onespike.sites import Operand, Site, Visitor
from onespike.sites.padding import real


@dataclass
class Ledger(Visitor):
    """Operation counts of all sites over a number of inputs.

    Two spiking operands of one product are counted once, at the one that drives (the first: q, and the attention
    weights). `double=True` counts pairs instead: Σ|y_a||y_b|, the nonzero pairs (ECMT), or the pairs of signed
    digits. From the second timestep on both drive, since the product of two sums changes with either.
    """

    blockwise = True

    sites: dict[Site, SiteCount] = field(default_factory=dict)
    functions: dict[str, int] = field(default_factory=dict)
    unruled: dict[tuple[str, str], int] = field(default_factory=dict)
    """MACs of products that ran outside every rule, by module and operation."""
    inputs: int = 0
    every: int = 1
    """Count one row of elements in `every`, and multiply: an estimate without the column `strict`, for searches."""
    seconds: float = 0.0
    """Time spent on counting, to be subtracted from the time of a forward."""
    pairs: Pairs = field(default_factory=Pairs, repr=False)
    padding: Tensor | None = field(default=None, repr=False)
    """Which tokens of the batch are real, while a network with padding runs: the others are not counted."""
    waiting: list[tuple[SiteCount, int, float, int, Tensor]] = field(default_factory=list, repr=False)
    """Samples of sites that wait to be counted together."""

    def visit(self, operand: Operand, x: Tensor) -> Tensor:
        started = time.perf_counter()
        place: Neurons = operand.place
        site, neuron = operand.site, operand.neuron(x)
        row = self.sites.get(site)
        if row is None:
            row = self.sites[site] = SiteCount(
                site, place.roles.get(site.key, ""), isinstance(neuron, Neuron)
            )
        synapses, tokens = operand.synapses, self._tokens(operand, x)
        share = 1.0 if tokens is None else _share(operand, tokens)
        if place.now == 1:  # the original network, the base of the ratio, runs once
            row.macs += round(share * synapses.macs)
        row.elements += x.numel() if tokens is None else int(tokens.sum()) * (x.numel() // tokens.numel())
        row.visits += not operand.again
        if (
            operand.product.weighted and site.role == "lhs"
        ):  # the softmax of a rule; others are seen as functions
            self.functions["softmax"] = self.functions.get("softmax", 0) + 2 * x.numel()
        self.seconds += time.perf_counter() - started
        if not isinstance(neuron, Neuron):
            return x
        code = neuron.code()
        offset = code.offset
        if offset is not None and site.operation not in ("linear", "conv"):
            row.constant_macs += share * synapses.macs / _shared(offset, x)
        row.fire(
            code, round(share * x.numel()), round(share * synapses.outputs), by_row=_by_row(place[site.key])
        )
        if self.every > 1:
            return self._sample(row, operand, neuron, x, synapses.fan_out)
        started = time.perf_counter()
        fired, output = operand.fire(x)
        if place.weights != "integers":  # there the product fires its operand, and this only counts
            started = time.perf_counter()
        fired = fired if tokens is None else fired * tokens
        self._add(row, place.now, neuron, fired, synapses.fan_out)
        self._count_pairs(row, operand, fired, output)
        self.seconds += time.perf_counter() - started
        return output

    def _tokens(self, operand: Operand, x: Tensor) -> Tensor | None:
        """Return which elements are not padding; None for all."""
        mask, rows = self.padding, operand.rows
        if mask is not None and rows is not None and rows.of == mask.shape[1]:
            mask = mask[:, rows.start : rows.stop]
        return real(operand.site, x, mask)

    def _sample(
        self, row: SiteCount, operand: Operand, neuron: Neuron, x: Tensor, fan_out: int | Tensor
    ) -> Tensor:
        """Count a part of the elements; if all have one threshold, the others are not even counted."""
        one = all(buffer.numel() == 1 for _, buffer in neuron.named_buffers(recurse=False))
        place: Neurons = operand.place
        alike = place.clock is None and one
        fired, output = (None, neuron(x)) if alike else operand.fire(x)
        started = time.perf_counter()
        tokens = self._tokens(operand, x)
        if tokens is not None:
            fired = (neuron.counts(x) if fired is None else fired) * tokens
        fired = neuron.counts(sample(x, self.every)) if fired is None else sample(fired, self.every)
        if isinstance(fan_out, Tensor):
            fan_out = sample(fan_out.expand_as(x), self.every)
        each = x.numel() / max(len(fired), 1)
        if isinstance(fan_out, int) and place.now == 1:  # all sites at once cost far less than one by one
            self.waiting.append((row, fan_out, each, neuron.largest, fired.detach()))
        else:
            self._add(row, place.now, neuron, fired.detach(), fan_out, each)
        self.seconds += time.perf_counter() - started
        return output

    def settle(self) -> None:
        """Count the samples that wait; `metered` calls it at the end."""
        started, waiting, self.waiting = time.perf_counter(), self.waiting, []
        sums = totals_of([(largest, fired) for *_, largest, fired in waiting])
        for (row, fan_out, each, _, _), total in zip(waiting, sums, strict=True):
            row.take(total.times(each * fan_out).additions, total.times(each))
        self.seconds += time.perf_counter() - started

    def _add(
        self,
        row: SiteCount,
        now: int,
        neuron: Neuron,
        fired: Tensor,
        fan_out: int | Tensor,
        each: float = 1.0,
    ) -> None:
        """Add counts, each of which represents `each` elements."""
        total = totals(neuron.largest, fired)
        weighted = (
            total.times(fan_out) if isinstance(fan_out, int) else totals(neuron.largest, fired, fan_out)
        )
        row.take(weighted.times(each).additions, total.times(each), later=now > 1)

    def _count_pairs(self, row: SiteCount, operand: Operand, fired: Tensor, output: Tensor) -> None:
        """Count both operands of a product once the second is there; the sum is kept at the first."""
        pairs_by_reading = self.pairs.update(operand, fired, output)
        if pairs_by_reading is None:
            return
        first = self.sites[row.site.operand(next(iter(operand.product.operands)))]
        for reading, pairs in pairs_by_reading.items():
            first.pairs[reading] = first.pairs.get(reading, 0.0) + pairs

    def merge(self, other: Ledger) -> None:
        """Add what another ledger has counted over other inputs."""
        for site, row in other.sites.items():
            if site in self.sites:
                self.sites[site].merge(row)
            else:
                self.sites[site] = row
        for name, macs in other.functions.items():
            self.functions[name] = self.functions.get(name, 0) + macs
        for product, macs in other.unruled.items():
            self.unruled[product] = self.unruled.get(product, 0) + macs
        self.inputs += other.inputs
        self.seconds += other.seconds

    def products(self) -> Iterator[tuple[str, SiteCount]]:
        """Each product with the site that drives it: its first spiking operand, or its first operand."""
        drivers: dict[str, SiteCount] = {}
        for row in self.sites.values():
            known = drivers.get(row.site.product)
            if known is None or (row.spiking and not known.spiking):
                drivers[row.site.product] = row
        yield from drivers.items()

    @property
    def macs(self) -> int:
        """All synaptic multiply-accumulates of the original network."""
        return sum(row.macs for _, row in self.products()) + sum(self.unruled.values())

    @property
    def layers(self) -> int:
        """The number of products that ran, each counted once per input."""
        return self.inputs * (sum(1 for _ in self.products()) + len(self.unruled))

    @property
    def updates(self) -> int:
        """Neurons that were updated."""
        return sum(row.elements for row in self.sites.values() if row.spiking)

    @property
    def compared(self) -> float:
        """Comparisons with thresholds."""
        return sum(row.compared for row in self.sites.values())

    @property
    def measured(self) -> float:
        """Additions that measure the magnitudes of rows, and shifts of the results of their products."""
        return sum(row.measured for row in self.sites.values())

    @property
    def analog_products(self) -> int:
        """Multiply-accumulates of products without a spiking operand."""
        return sum(row.macs for _, row in self.products() if not row.spiking) + sum(self.unruled.values())

    @property
    def analog_share(self) -> float:
        """The share of the original's MACs that stays analog; most columns leave it out."""
        return self.analog_products / max(self.macs, 1)

    @property
    def head_share(self) -> float:
        """The output layer's share of the original's MACs: over half in a small language model."""
        return sum(row.macs for _, row in self.products() if row.role == "head") / max(self.macs, 1)

    @property
    def analog_macs(self) -> int:
        """Multiply-accumulates that remain: products without a spiking operand, norms, activation functions."""
        return self.analog_products + sum(self.functions.values())

    @property
    def constant_macs(self) -> float:
        """Multiply-accumulates of constant parts of activations with other activations."""
        return sum(row.constant_macs for row in self.sites.values())

    def joined(self, reading: str) -> float:
        """Return the additions that join the sums of lanes and of both signs."""
        return sum(row.joined.get(reading, 0.0) for row in self.sites.values())

    def beyond(self, reading: str) -> float:
        """Return the pairs of spikes beyond the additions of the driving operand, where a product has more pairs."""
        rows = (row for _, row in self.products() if reading in row.pairs)
        return sum(max(row.pairs[reading] - row.additions[reading], 0.0) for row in rows)

    def events(self, reading: str) -> float:
        """Return the spikes that leave their sites."""
        return sum(row.sent.get(reading, 0.0) for row in self.sites.values())

    def accumulates(self, column: str, double: bool = False) -> float:
        """Return the spike-driven additions of all products, as a column reads a spike."""
        reading = reading_of(column)
        rows, name = [row for _, row in self.products() if row.spiking], reading.name
        if double:
            if self.every > 1:
                raise UsageError("pairs of spikes are not sampled. Count with every=1.")
            if not reading.over_steps and any(row.later for row in rows):
                known = " or ".join(repr(r.name) for r in READINGS.values() if r.over_steps)
                raise UsageError(
                    f"{reading.pairs} is counted for one timestep. Take double with column {known}."
                )
            return sum(row.pairs.get(name, row.additions.get(name, 0.0)) for row in rows)
        drivers = {id(row) for row in rows}
        others = sum(row.later.get(name, 0.0) for row in self.sites.values() if id(row) not in drivers)
        return sum(row.additions.get(name, 0.0) for row in rows) + others

    def items(self, column: str, double: bool = False) -> list[Item]:
        """Return the operations that a column charges, by purpose."""
        entry = column_of(column)
        if not entry.sampled and self.every > 1:
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
        prices = prices or profile()
        return _energy_pj(self.items(column, double), prices) / _energy_pj(original(self), prices)

    def original_pj(self, prices: Profile | None = None) -> float:
        """Return the energy of the original network for everything that was counted."""
        return _energy_pj(original(self), prices or profile())

    def parts(self, column: str, prices: Profile | None = None) -> dict[str, float]:
        """Return the parts of a column's ratio by purpose; parts that cost nothing are left out."""
        if math.isnan(self.ratio(column, prices=prices)):
            return {}
        prices = prices or profile()
        whole = _energy_pj(original(self), prices)
        parts = {item.name: _energy_pj([item], prices) / whole for item in self.items(column)}
        return {name: part for name, part in parts.items() if part}

    def ratios(self, prices: Profile | None = None) -> dict[str, float]:
        return {column: self.ratio(column, prices=prices) for column in COLUMNS}

    def table(self) -> list[dict[str, Any]]:
        """Return one row per site: MACs, accumulates in each column (where it drives its product), firing rates.

        Products outside every rule come last, as `module:operation`.
        """
        drivers = {id(row) for _, row in self.products()}
        unruled = [
            SiteCount(Site(owner, operation.replace(".", "::")), "", False, macs)
            for (owner, operation), macs in self.unruled.items()
            if macs  # products of unknown size are in the table of sites alone
        ]
        prices = profile()
        share = prices.price("float32 add") / _energy_pj(original(self), prices) if self.macs else 0.0
        return [
            {
                "site": str(row.site),
                "spiking": row.spiking,
                "drives": row.spiking and id(row) in drivers,
                "macs": row.macs,
                **{reading: row.additions.get(reading, 0.0) for reading in READINGS},
                "ratio": row.additions.get("counts", 0.0) * share if id(row) in drivers else 0.0,
                "spikes per neuron": row.spikes / max(row.elements, 1),
                "active share": row.active / max(row.elements, 1),
                "saturated share": row.saturated / max(row.elements, 1),
            }
            for row in [*self.sites.values(), *unruled]
        ]


def known(ratio: float) -> float | None:
    """Return a ratio for JSON: None where a column has none."""
    return None if math.isnan(ratio) else ratio


def _energy_pj(items: Iterable[Item], prices: Profile) -> float:
    """Return the cost of the operations; those that do not occur need no price."""
    return sum((item.number * prices.price(item.operation) for item in items if item.number), 0.0)


def _share(operand: Operand, tokens: Tensor) -> float:
    """Return the part of a product that is made for tokens, not for padding."""
    visible, lhs = operand.product.visible, operand.product.operands.get("lhs")
    if lhs is None or visible is None or operand.site.role != "lhs":
        return float(tokens.double().mean())
    rows = visible & tokens  # a padding query asks for nothing
    return int(rows.sum()) / max(int(visible.expand_as(rows).sum()), 1)


def _shared(offset: Tensor, x: Tensor) -> int:
    """Return how many rows or columns of an operand share one constant, and so one product."""
    return math.prod(
        x.shape[axis] for axis in (-2, -1) if offset.dim() < -axis or offset.shape[axis] < x.shape[axis]
    )


def _by_row(neuron: Any) -> bool:
    return isinstance(neuron, Neuron) and neuron.settles
