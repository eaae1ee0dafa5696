"""The energy ledger: what every site's spikes cost, in columns that mean different things and say so."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from onespike.attach import Analog, Meter, Neurons, by_rows
from onespike.errors import UsageError
from onespike.neurons import AffineFire, Neuron
from onespike.operations import Operations, Owners
from onespike.pairs import Pairs
from onespike.sites import Rows, Site, is_activation
from onespike.synapses import Synapses
from onespike.tally import sample, totals, totals_of

AC_PJ, MAC_PJ = 0.9, 4.6
"""One 32-bit accumulate and one 32-bit multiply-accumulate in 45 nm (Horowitz 2014), as the paper takes them."""
W8A8_PJ, W4A4_PJ = 0.2 + 0.1, 0.05 + 0.1
"""An integer multiply plus add at 8 and at 4 bits; the 4-bit figure is extrapolated."""

COLUMNS = {
    "counts": "0.9 pJ × Σ|y|·fan-out: a spike of size y is y additions (the paper's column)",
    "nonzero": "0.9 pJ × Σ[y≠0]·fan-out: a graded spike is one addition",
    "binary": "0.9 pJ × Σ NAF(y)·fan-out: signed binary digits on power-of-two lanes, shift and add",
    "strict": "counts, plus 4.6 pJ for each MAC left analog: unconverted products, norms, activation functions",
    "w8a8": "comparator: the same MACs as 8-bit integers, 0.3 pJ each",
    "w4a4": "comparator: the same MACs as 4-bit integers, 0.15 pJ each (extrapolated)",
}
DEFINITION = "ratio = energy of the column / (4.6 pJ × all synaptic MACs of the original network)"

FUNCTION_MACS: dict[Callable[..., Any], tuple[str, int]] = {
    F.layer_norm: ("norm", 2), F.rms_norm: ("norm", 2), F.group_norm: ("norm", 2),
    F.instance_norm: ("norm", 2), F.batch_norm: ("norm", 1),
    F.gelu: ("activation", 1), F.silu: ("activation", 1), F.mish: ("activation", 1),
    F.elu: ("activation", 1), F.softplus: ("activation", 1),
    torch.sigmoid: ("activation", 1), F.sigmoid: ("activation", 1), Tensor.sigmoid: ("activation", 1),
    torch.tanh: ("activation", 1), F.tanh: ("activation", 1), Tensor.tanh: ("activation", 1),
    F.hardswish: ("activation", 1),
}  # fmt: skip
"""MACs an output element of an analog function is charged with in `strict`; softmax is charged 2 at its site."""


@dataclass
class SiteCount:
    """What passed one site, summed over all inputs. `counts`, `nonzero` and `binary` are accumulates."""

    site: Site
    role: str
    spiking: bool
    macs: int = 0
    elements: int = 0
    counts: float = 0.0
    nonzero: float = 0.0
    binary: float = 0.0
    pairs: dict[str, float] = field(default_factory=dict)
    spikes: float = 0.0
    active: int = 0
    saturated: int = 0
    visits: int = 0
    later: dict[str, float] = field(default_factory=dict)
    """The part of the three accumulate columns that came after the first timestep."""
    constant_macs: float = 0.0

    def take(self, accumulates: Sequence[float], total: Sequence[float], later: bool = False) -> None:
        """Add to the three accumulate columns, and numbers of spikes, active, (digits) and saturated neurons."""
        for column, more in zip(("counts", "nonzero", "binary"), accumulates, strict=True):
            setattr(self, column, getattr(self, column) + more)
            if later:
                self.later[column] = self.later.get(column, 0.0) + more
        self.spikes += total[0]
        self.active += round(total[1])
        self.saturated += round(total[3])

    def merge(self, other: SiteCount) -> None:
        """Add what passed the same site elsewhere; what is no number is the same for both."""
        for column in fields(self):
            mine, more = getattr(self, column.name), getattr(other, column.name)
            if isinstance(mine, dict):
                mine |= {name: mine.get(name, 0.0) + number for name, number in more.items()}
            elif column.name not in ("site", "role", "spiking"):
                setattr(self, column.name, mine + more)


@dataclass
class Ledger:
    """Operation counts of all sites over a number of inputs.

    Two spiking operands of one product are counted once, at the one that drives (the first: q, and the attention
    weights); `double=True` counts pairs instead, Σ|y_a||y_b| or those that are not zero (ECMT). From the second timestep on both drive, since the product of
    two sums changes with either.
    """

    sites: dict[Site, SiteCount] = field(default_factory=dict)
    functions: dict[str, int] = field(default_factory=dict)
    unruled: dict[tuple[str, str], int] = field(default_factory=dict)
    """MACs of products that ran outside every rule, by module and operation."""
    announced: int = 0
    every: int = 1
    """Count one row of elements in so many, and multiply: an estimate without the column `strict`, for searches."""
    seconds: float = 0.0
    """Time spent on counting, so that a forward's own time is known."""
    pairs: Pairs = field(default_factory=Pairs, repr=False)
    waiting: list[tuple[SiteCount, int, float, int, Tensor]] = field(default_factory=list, repr=False)
    """Samples of sites, until they are counted together."""

    @by_rows
    def visit(
        self, owner: Neurons, key: str, x: Tensor, count: Callable[[], Synapses], rows: Rows | None = None
    ) -> Tensor:
        started = time.perf_counter()
        neuron, site = owner.at(key, rows), Site(owner.owner, key)
        again = rows is not None and rows.start > 0
        # a block announces the scores of the next one too, and after the first also its partner in the product
        follows = rows is not None and rows.stop < rows.of
        self.announced += 1 + follows * (1 + again)
        row = self.sites.get(site)
        if row is None:
            row = self.sites[site] = SiteCount(site, owner.roles.get(key, ""), isinstance(neuron, Neuron))
        synapses = count()
        if owner.now == 1:  # the original network, which the ratio compares with, runs once
            row.macs += synapses.macs
        row.elements += x.numel()
        row.visits += not again
        if row.role == "softmax":
            self.functions["softmax"] = self.functions.get("softmax", 0) + 2 * x.numel()
        self.seconds += time.perf_counter() - started
        if not isinstance(neuron, Neuron):
            return x
        if isinstance(neuron, AffineFire) and neuron.shifts and not key.startswith(("linear", "conv")):
            row.constant_macs += synapses.macs / _shared(neuron.offset, x)
        if self.every > 1:
            return self._sample(row, owner, key, neuron, x, synapses.fan_out)
        started = time.perf_counter()
        value = neuron.fast(x) if owner.clock is None else None  # what the network does without a meter
        fired, output = (None, value) if value is not None else owner.fire(key, neuron, x)
        if owner.weights != "integers":  # there the product fires by itself, and this is counting
            started = time.perf_counter()
        fired = (neuron.counts(x) if fired is None else fired).detach()
        self._add(row, owner, neuron, fired, synapses.fan_out)
        self._count_pairs(row, owner, key, fired, output, again)
        self.seconds += time.perf_counter() - started
        return output

    def _sample(
        self, row: SiteCount, owner: Neurons, key: str, neuron: Neuron, x: Tensor, fan_out: int | Tensor
    ) -> Tensor:
        """The same, on a part of the elements; where all have one threshold, the others are not even counted."""
        one = all(buffer.numel() == 1 for _, buffer in neuron.named_buffers(recurse=False))
        alike = owner.clock is None and one
        fired, output = (None, neuron(x)) if alike else owner.fire(key, neuron, x)
        started = time.perf_counter()
        fired = neuron.counts(sample(x, self.every)) if fired is None else sample(fired, self.every)
        if isinstance(fan_out, Tensor):
            fan_out = sample(fan_out.expand_as(x), self.every)
        each = x.numel() / max(len(fired), 1)
        if isinstance(fan_out, int) and owner.now == 1:  # all sites at once cost far less than each by itself
            self.waiting.append((row, fan_out, each, neuron.largest, fired.detach()))
        else:
            self._add(row, owner, neuron, fired.detach(), fan_out, each)
        self.seconds += time.perf_counter() - started
        return output

    def settle(self) -> None:
        """Take in the samples that wait; `metered` does it in the end."""
        started, waiting, self.waiting = time.perf_counter(), self.waiting, []
        sums = totals_of([(largest, fired) for *_, largest, fired in waiting])
        for (row, fan_out, each, _, _), total in zip(waiting, sums, strict=True):
            row.take([each * fan_out * n for n in total[:3]], [each * n for n in total])
        self.seconds += time.perf_counter() - started

    def _add(
        self,
        row: SiteCount,
        owner: Neurons,
        neuron: Neuron,
        fired: Tensor,
        fan_out: int | Tensor,
        each: float = 1.0,
    ) -> None:
        """Take in counts, each of which stands for so many."""
        total = totals(neuron.largest, fired)
        weighted = (
            [fan_out * n for n in total]
            if isinstance(fan_out, int)
            else totals(neuron.largest, fired, fan_out)
        )
        row.take([each * n for n in weighted[:3]], [each * n for n in total], later=owner.now > 1)

    def _count_pairs(
        self, row: SiteCount, owner: Neurons, key: str, fired: Tensor, output: Tensor, again: bool
    ) -> None:
        """Both operands of a product, once the second is there; the sum stands at the first."""
        call = None if owner.clock is None else owner.clock.calls[owner.owner, key]
        found = self.pairs.update(row.site, owner[key], fired, output, owner.now, call, again)  # type: ignore[arg-type]
        if found is None:
            return
        first = self.sites[Site(owner.owner, key.replace("_rhs", "_lhs"))]
        for column, pairs in found.items():
            if owner.now == 1 or column == "nonzero":
                first.pairs[column] = first.pairs.get(column, 0.0) + pairs

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
        self.seconds += other.seconds

    def covered(self) -> bool:
        """Whether a product that runs now was announced: n visited operands announce n−1 products, one announces one."""
        announced, self.announced = self.announced, self.announced - 1 if self.announced > 2 else 0
        return announced > 0

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
    def analog_macs(self) -> int:
        """Multiply-accumulates that remain: products without a spiking operand, norms, activation functions."""
        products = sum(row.macs for _, row in self.products() if not row.spiking)
        return products + sum(self.unruled.values()) + sum(self.functions.values())

    def accumulates(self, column: str, double: bool = False) -> float:
        """Spike-driven additions of all products in one of the columns `counts`, `nonzero`, `binary`."""
        rows = [row for _, row in self.products() if row.spiking]
        if double and column in ("counts", "nonzero"):
            if column == "counts" and any(row.later for row in rows):
                raise UsageError(
                    "Σ|y_a||y_b| is counted for one timestep. Take double with column 'nonzero'."
                )
            return sum(row.pairs.get(column, float(getattr(row, column))) for row in rows)
        drivers = {id(row) for row in rows}
        others = sum(row.later.get(column, 0.0) for row in self.sites.values() if id(row) not in drivers)
        return float(sum(getattr(row, column) for row in rows)) + others

    def ratio(self, column: str, double: bool = False) -> float:
        """Energy relative to the original network's MACs, in one of `COLUMNS`.

        NaN where neurons stand in place of ReLUs: what reaches a product is then no longer a count of spikes.
        """
        if column not in COLUMNS:
            raise UsageError(f"unknown energy column {column!r}. Known: {', '.join(COLUMNS)}.")
        if column in ("w8a8", "w4a4"):
            return (W8A8_PJ if column == "w8a8" else W4A4_PJ) / MAC_PJ
        whole = self.macs * MAC_PJ
        if not whole:
            raise UsageError("this ledger has counted nothing. Run the network within metered(model) first.")
        if any(is_activation(site.key) for site in self.sites):
            return math.nan
        if column == "strict" and self.every > 1:
            raise UsageError(
                "norms and activation functions are not sampled. Count with every=1 for 'strict'."
            )
        additions = self.accumulates("counts" if column == "strict" else column, double) * AC_PJ
        additions += sum(row.constant_macs for row in self.sites.values()) * MAC_PJ
        return (additions + (self.analog_macs * MAC_PJ if column == "strict" else 0.0)) / whole

    def ratios(self) -> dict[str, float]:
        return {column: self.ratio(column) for column in COLUMNS}

    def table(self) -> list[dict[str, Any]]:
        """One row for each site: MACs, accumulates in each column (where it drives its product), firing rates.

        Products outside every rule come last, as `module:operation`.
        """
        drivers = {id(row) for _, row in self.products()}
        unruled = [
            SiteCount(Site(owner, operation.replace(".", "::")), "", False, macs)
            for (owner, operation), macs in self.unruled.items()
            if macs  # those of unknown size are in the table of sites alone
        ]
        return [
            {
                "site": str(row.site),
                "spiking": row.spiking,
                "drives": row.spiking and id(row) in drivers,
                "macs": row.macs,
                **{column: getattr(row, column) for column in ("counts", "nonzero", "binary")},
                "ratio": row.counts * AC_PJ / (self.macs * MAC_PJ) if id(row) in drivers else 0.0,
                "spikes per neuron": row.spikes / max(row.elements, 1),
                "active share": row.active / max(row.elements, 1),
                "saturated share": row.saturated / max(row.elements, 1),
            }
            for row in [*self.sites.values(), *unruled]
        ]


def _shared(offset: Tensor, x: Tensor) -> int:
    """How many rows or columns of an operand share one constant, and with it one product."""
    return math.prod(
        x.shape[axis] for axis in (-2, -1) if offset.dim() < -axis or offset.shape[axis] < x.shape[axis]
    )


class _Functions(TorchFunctionMode):
    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in FUNCTION_MACS:
            name, macs = FUNCTION_MACS[function]
            self.ledger.functions[name] = self.ledger.functions.get(name, 0) + macs * result.numel()
        return result


def _has_unruled(owner: Neurons) -> bool:
    return any(isinstance(site, Analog) and site.macs is not None for site in owner.values())


def _unwatched(visit: Meter) -> Meter:
    """What counts is no part of the network: nobody looks for products in it."""

    @by_rows
    def visit_unwatched(*site: Any) -> Tensor:
        with _disable_current_modes():
            return visit(*site)

    return visit_unwatched


@contextmanager
def metered(model: nn.Module, ledger: Ledger | None = None, *, watch: bool | None = None) -> Iterator[Ledger]:
    """Within this context every forward of a converted network is counted; the outputs do not change.

    Args:
        model: a converted network.
        ledger: to go on counting in; a new one by default.
        watch: also look for products outside every rule, which costs time; by default only where the network has
            some.

    >>> from onespike import calibrate, convert
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> x = torch.randn(64, 2)
    >>> snn = convert(model, calibrate(model, [x]))
    >>> with metered(snn) as ledger:
    ...     _ = snn(x)
    >>> ledger.macs
    1152
    """
    ledger = ledger if ledger is not None else Ledger()
    owners = [module for module in model.modules() if isinstance(module, Neurons)]
    watch = any(_has_unruled(owner) for owner in owners) if watch is None else watch
    for owner in owners:
        owner.meter = _unwatched(ledger.visit) if watch else ledger.visit
    try:
        with ExitStack() as stack:
            if ledger.every == 1:
                stack.enter_context(_Functions(ledger))
            if watch:
                names = Owners(model)
                stack.enter_context(names.following())
                # the original network, whose MACs these are, runs once
                looks = Operations(
                    names, ledger.covered, ledger.unruled, lambda: not owners or owners[0].now == 1
                )
                stack.enter_context(looks)
            yield ledger
            ledger.settle()
    finally:
        for owner in owners:
            owner.meter = None
