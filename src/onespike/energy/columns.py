"""Energy columns: the ledger counts, a column's rule turns the counts into operations, and a profile prices them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from onespike.energy.analog_functions import PRODUCT
from onespike.energy.profiles import profile
from onespike.errors import unknown
from onespike.spikes.code import SHIFTS, SUM_SHIFTS

if TYPE_CHECKING:
    from onespike.energy.ledger import Ledger

PAPER = "counts"  # the column of the paper's ratios, and the default
DEFINITION = "ratio = energy of the column / energy of the original network, all of whose synaptic MACs are 32-bit floats"
OF_ALL_MACS = "of all MACs of the original"  # the one denominator: of budgets, tables, presets and pages


def naf_weight(counts: Tensor) -> Tensor:
    """Return how many nonzero digits each magnitude n has in non-adjacent form, the fewest: where n and 3n differ.

    Each digit d_k = ±1 is a spike on the lane of 2^k: W·y = Σ_k 2^k·(W·d_k), so a lane adds or subtracts weights, and its
    sum is shifted by k. In fixed-point arithmetic both sides are the same integer.

    >>> naf_weight(torch.tensor([0.0, -1.0, 3.0, 7.0, 11.0, 263.0])).tolist()
    [0.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    """
    sizes = counts.abs().to(torch.int32)
    every = torch.arange(int(sizes.max()) + 1 if sizes.numel() else 1)
    differing = every ^ 3 * every
    table = sum((differing >> k & 1 for k in range(int(3 * every[-1]).bit_length())), torch.zeros_like(every))
    return table.float().to(sizes.device)[sizes]


def naf_length(largest: int) -> int:
    """Return how many digits, zeros included, the integers up to `largest` need: the number of lanes.

    >>> [naf_length(n) for n in (1, 2, 3, 5, 7, 263)]
    [1, 2, 3, 3, 4, 9]
    """
    return (3 * largest).bit_length() - 1


@dataclass(frozen=True)
class Reading:
    """The number of additions per spike at each synapse behind it, from the count alone: the sign does not matter."""

    name: str
    additions: Callable[[Tensor], Tensor]
    elasticity: float = 1.0  # how fast additions fall with the logarithm of a step: Σ|y| as 1/step
    by_digits: bool = False  # charged by signed binary digits, so few digits save more than few spikes
    over_steps: bool = False  # pairs are counted beyond the first timestep


READINGS = {
    "counts": Reading("counts", lambda y: y.abs()),
    "nonzero": Reading("nonzero", lambda y: (y != 0).float(), elasticity=0.5, over_steps=True),
    "binary": Reading("binary", naf_weight, elasticity=0.5, by_digits=True),
}


class Item(NamedTuple):
    """A number of operations of one kind, priced by a profile."""

    name: str
    number: float
    operation: str


FLOAT, INTEGER = ("float32 add", "float32"), ("int32 add", "int8")  # the addition of a weight, and its width
Rule = Callable[["Ledger", bool], list[Item]]  # (ledger, whether to count pairs) → operations over all inputs


@dataclass(frozen=True)
class Column:
    """One way to count the energy of a network: its meaning in one line, and the operations that it charges."""

    name: str
    meaning: str
    rule: Rule
    reading: Reading | None = None  # of a spike; None for a comparator, which has no spikes
    integer_of: str = ""  # the column that it reads with 8-bit weights: a network with another accuracy
    # the column that it charges with all that it leaves out: passes cannot hold it, nor can samples estimate it
    strict_of: str = ""
    bits: int = 0  # of weights and activations, for a comparator that is a network to measure


def column_of(name: str) -> Column:
    if name not in COLUMNS:
        raise unknown("energy column", name, COLUMNS)
    return COLUMNS[name]


def reading_of(name: str) -> Reading:
    if (reading := column_of(name).reading) is None:
        raise unknown("energy column of spikes", name, searchable())
    return reading


def meanings() -> dict[str, str]:
    return {name: column.meaning for name, column in COLUMNS.items()}


def holdable() -> list[str]:
    """Return the columns that a budget of passes can use."""
    return [name for name, column in COLUMNS.items() if column.reading and not column.strict_of]


def searchable() -> list[str]:
    """Return the columns that depend on spikes, and so on λ."""
    return [name for name, column in COLUMNS.items() if column.reading]


def integer_reading(name: str) -> str | None:
    return next((other for other, column in COLUMNS.items() if column.integer_of == name), None)


def strict_reading(name: str) -> str | None:
    """Return the column that charges this one and all that it leaves out, if there is one."""
    return next((other for other, column in COLUMNS.items() if column.strict_of == name), None)


def of_what_spikes(column: str, ratio: float | None, analog_share: float) -> float | None:
    """Return a ratio over the products that spike alone, for columns that charge nothing else."""
    spiking = 1 - analog_share
    return ratio / spiking if ratio is not None and spiking > 0 and column in holdable() else None


def beside(column: str, ratio: float, analog_share: float) -> str:
    """Return a ratio in words, with the one over what spikes beside it.

    >>> beside("binary", 0.199, 0.204)
    '0.199 of all MACs of the original (0.250 of what spikes)'
    """
    spiking = of_what_spikes(column, ratio, analog_share)
    return f"{ratio:.3f} {OF_ALL_MACS}" + ("" if spiking is None else f" ({spiking:.3f} of what spikes)")


def additions_within(name: str, ratio: float, macs: float) -> float:
    """Return how many spike additions a budget pays for, in a column and at the default prices."""
    prices, (addition, _) = profile(), INTEGER if column_of(name).integer_of else FLOAT
    return ratio * macs * prices.price("float32 multiply-add") / prices.price(addition)


def dense(width: str, ledger: Ledger, double: bool = False) -> list[Item]:
    """Charge all MACs of the original network in numbers of one width."""
    return [
        Item("products", ledger.macs, f"{width} multiply-add"),
        Item("weights read", ledger.macs, f"{width} read"),
    ]


def _spikes(reading: str, addition: str, width: str, ledger: Ledger, double: bool) -> list[Item]:
    """Charge every spike as additions of a weight of this width; each weight is read."""
    additions, rows = ledger.accumulates(reading, double), ledger.sites.values()
    return [
        Item("spikes", additions, addition),
        Item("row sums for offsets", sum(row.constant_macs for row in rows), f"{width} multiply-add"),
        Item("weights read", additions, f"{width} read"),
        Item("spikes sent", ledger.events(reading), "spike"),
    ]


def _functions(ledger: Ledger) -> list[Item]:
    """Charge norms, softmax, activation functions and element-wise products."""
    functions = {name: float(macs) for name, macs in ledger.functions.items()}
    if PRODUCT in functions:  # a product that is summed next is an analog product already
        summed = sum(macs for (_, name), macs in ledger.unruled.items() if name == "weighted_sum")
        functions[PRODUCT] = max(functions[PRODUCT] - summed, 0.0)
    return [Item(name, macs, "float32 multiply-add") for name, macs in functions.items()]


def _strict_dense(width: str, ledger: Ledger, double: bool) -> list[Item]:
    """Charge an integer network its functions, in floats, and bringing every operand but pixels to its grid, too."""
    operands = [row for row in ledger.sites.values() if row.role not in ("input", "weight", "constant")]
    once = 1 / max(ledger.timesteps, 1)  # an integer network runs once, whatever the spiking one does
    return [
        *dense(width, ledger),
        *(item._replace(number=item.number * once) for item in _functions(ledger)),
        Item("requantization", sum(row.elements for row in operands) * once, "float32 multiply-add"),
    ]


def _neurons(ledger: Ledger, fixed: bool) -> list[Item]:
    """Charge functions in floats, and a multiply-add per neuron; in fixed point what functions in thresholds leave."""
    rows, functions, whole = ledger.sites.values(), _functions(ledger), "int32 multiply-add"
    # each element is scaled before it fires or is rounded, but pixels, which are integers already
    updates = sum(r.elements for r in rows if r.spiking or (r.dense and r.role != "input"))
    if not fixed:
        return [*functions, Item("neuron updates", updates, "neuron update")]
    shifted = SUM_SHIFTS * ledger.values + SHIFTS * sum(row.shifted for row in rows)
    return [
        *(Item(name, number - ledger.folded[name], whole) for name, number, _ in functions),
        Item("neurons scaled", sum(row.scaled for row in rows), whole),
        Item("shifted and added", shifted, INTEGER[0]),
        Item("neuron updates", updates, "integer neuron"),
    ]


def _strict(reading: str, addition: str, width: str, ledger: Ledger, double: bool) -> list[Item]:
    """Charge the plain column as it is, and what it leaves out: so no strict column is below its plain one."""
    rows = ledger.sites.values()
    # where a product has more pairs of spikes than additions of the operand that drives
    pairs = (row for row in ledger.products().values() if reading in row.pairs)
    beyond = sum(max(row.pairs[reading] - row.additions[reading], 0.0) for row in pairs)
    return [
        *_spikes(reading, addition, width, ledger, False),
        Item("pairs of spikes", beyond, addition),
        Item("pairs read", beyond, f"{width} read"),
        Item("analog products", ledger.analog_products, "float32 multiply-add"),
        Item("8-bit edges", ledger.edge_products, "int8 multiply-add"),
        Item("8-bit edges read", ledger.edge_products, "int8 read"),
        *_neurons(ledger, width == "int8" and ledger.timesteps == 1),
        Item("lanes and signs joined", sum(row.joined.get(reading, 0.0) for row in rows), addition),
        Item("thresholds compared", sum(row.compared for row in rows), addition),
        Item("rows measured and shifted", sum(row.measured for row in rows), addition),
    ]


STRICT = "and all that it leaves out: pairs of spikes, analog products and functions, neurons, lanes"


def _spiking(name: str, reading: str, meaning: str, strict_of: str = "", integer_of: str = "") -> Column:
    """Return a column that reads spikes, plain or strict, with float weights or as another one's integer reading."""
    rule = partial(_strict if strict_of else _spikes, reading, *(INTEGER if integer_of else FLOAT))
    return Column(name, meaning, rule, READINGS[reading], integer_of, strict_of)


COLUMNS = {column.name: column for column in (
    _spiking("counts", "counts", "Σ|y|·fan-out additions: a spike of size y is y additions (the paper's column)"),
    _spiking("nonzero", "nonzero", "Σ[y≠0]·fan-out additions: a graded spike is one; no integer reading, since that would be a multiplication"),
    _spiking("binary", "binary", "Σ NAF(y)·fan-out additions: signed binary digits on power-of-two lanes, shift and add"),
    _spiking("strict", "counts", f"counts, {STRICT}", strict_of="counts"),
    _spiking("strict-binary", "binary", f"binary, {STRICT}", strict_of="binary"),
    _spiking("counts-int8", "counts", "counts with 8-bit weights (evaluate --compare measures them), added to 32-bit integers", integer_of="counts"),
    _spiking("binary-int8", "binary", "binary with 8-bit weights, likewise", integer_of="binary"),
    _spiking("strict-int8", "counts", "strict with 8-bit weights, likewise; what is analog stays in 32-bit floats", strict_of="counts-int8", integer_of="strict"),
    _spiking("strict-binary-int8", "binary", "strict-binary with 8-bit weights, likewise", strict_of="binary-int8", integer_of="strict-binary"),
    Column("w8a8", "comparator: the same MACs as 8-bit integers", partial(dense, "int8"), bits=8),
    Column("w4a4", "comparator: the same MACs as 4-bit integers", partial(dense, "int4"), bits=4),
    Column("strict-w8a8", "w8a8, and what it leaves out: functions in floats, every operand brought to 8 bits", partial(_strict_dense, "int8"), strict_of="w8a8"),
    Column("strict-w4a4", "w4a4, and what it leaves out: likewise, to 4 bits", partial(_strict_dense, "int4"), strict_of="w4a4"),
)}  # fmt: skip
