"""The sheet of a network for hardware: per site what is stored and sent, per layer every operation that is no spike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from onespike.deploy.exports.base import Request, example
from onespike.deploy.exports.comparators import FRACTION, MOVES, POOLS, depth_of, largest_sum, sums_of
from onespike.deploy.exports.comparison import reference, tensors
from onespike.deploy.exports.folded_graph import fold_
from onespike.deploy.exports.graph import Graph, arguments, concrete, marked, operation_of, trace
from onespike.deploy.exports.operations import PRODUCTS
from onespike.runtime.batches import count
from onespike.spikes.code import SHIFTS, SUM_SHIFTS, few_digits

FIXED = f"fixed point, {FRACTION} bits behind the point"
SHIFTED, MULTIPLIED = "shift and add", "multiply by a constant"
ANALOG = ("aten.matmul.default", "aten.bmm.default", "aten.linear.default", "aten.einsum.default")


@dataclass(frozen=True)
class Operation:
    """What one layer computes beside adding weights: how often per input, on numbers of which width."""

    layer: str
    name: str
    number: int
    width: str
    floats: bool = False
    """Whether it multiplies by weights in floats: an analog product."""


@dataclass
class SiteSheet:
    """One site: what is stored there, what it sends, and how wide the sums behind it are, all in bits and bytes.

    Attributes:
        decides: whether its neurons compare integers, or scale and round.
        state_bytes: of the sums behind it for one input, in whole bytes each.
        accumulator_bits: enough for every sum that its levels and weights, or the levels of both factors, can give.
        measured_bits: enough for the sums of the inputs of the sheet.
        events: spikes per input, in the mean and at most, over the inputs of the sheet.
        traffic_bytes: of these spikes in the mean: the number of its neuron and the payload of each.
    """

    site: str
    decides: str = ""
    payload_bits: int = 0
    weight_bytes: int = 0
    threshold_bytes: int = 0
    accumulator_bits: int = 0
    measured_bits: int = 0
    state_bytes: int = 0
    events: float = 0.0
    most_events: int = 0
    traffic_bytes: float = 0.0


@dataclass(frozen=True)
class Sheet:
    """The sites of a network and the operations between them, for one input."""

    sites: list[SiteSheet]
    operations: list[Operation]

    @property
    def totals(self) -> dict[str, float]:
        """Sums over all sites, the widest accumulators and payload, and operations by name."""
        add = ("weight_bytes", "threshold_bytes", "state_bytes", "events", "traffic_bytes")
        widest = ("payload_bits", "accumulator_bits", "measured_bits")
        named = Counter[str]()
        for row in self.operations:
            named[row.name] += row.number
        return {
            **{name: sum(getattr(site, name) for site in self.sites) for name in add},
            **{name: max((getattr(site, name) for site in self.sites), default=0) for name in widest},
            **named,
        }

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "totals": self.totals}

    @property
    def floats(self) -> list[Operation]:
        """The products that are left in floats."""
        return [operation for operation in self.operations if operation.floats]


def sheet(snn: nn.Module, batches: Sequence[Any]) -> Sheet:
    """Return the sheet of a converted network's integer form, with its spikes on a few inputs."""
    request = Request.of(snn, batches, True, {})
    batch = example(batches)
    network = marked(request.network, batch)
    graph = trace(network, batch, pure=True)
    fold_(graph)
    return measured(graph, count(batch), request)


def measured(graph: Graph, batch: int, request: Request) -> Sheet:
    """Return the sheet of a folded graph, of a batch of this size, with its spikes and sums on all inputs."""
    made, inputs_seen = _Written(graph, batch), sum(map(count, request.batches))
    for node in graph.calls:
        made.add(node)
    sums = _Sums(graph)
    for inputs in request.batches:
        sums.see(inputs)
        for site, counts in reference(request.network, inputs)[1].counts:
            row, events = made.sites[site], (counts != 0).reshape(count(inputs), -1).sum(1)
            row.events += float(events.sum()) / inputs_seen
            row.most_events = max(row.most_events, int(events.max()))
            row.traffic_bytes = row.events * (row.payload_bits + (counts[0].numel() - 1).bit_length()) / 8
    for site, largest in sums.largest.items():
        made.sites[site].measured_bits = largest.bit_length() + 1
    return Sheet(list(made.sites.values()), made.rows())


class _Sums(fx.Interpreter):
    """Runs a folded graph and keeps the largest sum behind each site."""

    def __init__(self, graph: Graph) -> None:
        graph.program.graph_module.recompile()
        super().__init__(graph.program.graph_module)
        self.of = graph
        self.largest = dict[str, int]()

    def see(self, batch: Any) -> None:
        """Run one batch."""
        inputs = dict(zip(self.of.inputs, tensors(batch), strict=True))
        nodes = [node for node in self.of.program.graph.nodes if node.op == "placeholder"]
        self.run(*(inputs[node] if node in inputs else self.of.tensor(node) for node in nodes))

    def run_node(self, n: fx.Node) -> Any:
        value, op = super().run_node(n), operation_of(n)
        if op in PRODUCTS or op in PRODUCTS.values():
            site, sums = arguments(n)["site"], value
            if op in PRODUCTS:
                target, args = sums_of(n)
                sums = target(*fx.map_arg(args, lambda node: self.env[node]))
            self.largest[site] = max(self.largest.get(site, 0), int(sums.abs().max()))
        return value


class _Written:
    def __init__(self, graph: Graph, batch: int) -> None:
        self.graph, self.batch = graph, batch
        self.sites: dict[str, SiteSheet] = {}
        self._rows: dict[tuple[str, str, str, bool], int] = {}

    def rows(self) -> list[Operation]:
        return [
            Operation(layer, name, number // self.batch, width, floats)
            for (layer, name, width, floats), number in self._rows.items()
        ]

    def _charge(
        self, node: fx.Node, name: str, number: int, width: str = FIXED, floats: bool = False
    ) -> None:
        path = [name for name, _ in node.meta.get("nn_module_stack", {}).values()]
        layer = (
            path[-1].removeprefix("network").partition(".integer_")[0].partition(".neurons.")[0].strip(".")
            if path
            else ""
        )
        key = (layer, name, width, floats)
        self._rows[key] = self._rows.get(key, 0) + number

    def add(self, node: fx.Node) -> None:
        """Add one node to the sheet; what only moves elements costs nothing."""
        op, result = operation_of(node), node.meta.get("val")
        if op.startswith("spikes."):
            self._site(node, op.removeprefix("spikes."), arguments(node))
        elif isinstance(result, Tensor) and result.is_floating_point() and op not in (*MOVES, *POOLS):
            named = [a for a in node.args if isinstance(a, fx.Node)]
            weights = [x for x in map(self.graph.tensor, named) if x is not None]
            if op in ANALOG or "conv" in op:
                weighted = bool(weights)
                depth = weights[0][0].numel() if weighted else int(concrete(named[0].meta["val"].shape[-1]))
                kind = "product in floats" if weighted else "product of two activations"
                self._charge(
                    node, kind, _size(node) * depth, "32-bit floats" if weighted else FIXED, weighted
                )
            else:
                self._charge(node, op.split(".")[1], _size(node))

    def _sum(self, row: SiteSheet, node: fx.Node) -> None:
        """Add the sums of a product to the site that they follow."""
        bits = largest_sum(node, self.graph).bit_length() + 1
        row.accumulator_bits = max(row.accumulator_bits, bits)
        row.state_bytes += _size(node) // self.batch * -(-bits // 8)

    def _site(self, node: fx.Node, op: str, named: dict[str, Any]) -> None:
        if op == "row_gain":
            self._charge(node, "rows measured", _size(named["x"]))
            return
        row = self.sites.setdefault(named["site"], SiteSheet(named["site"]))
        tensors = {name: self.graph.tensor(value) for name, value in named.items()}
        if op in ("compare", "fire"):
            levels, signed = _levels(op, named)
            row.decides = "compares" if op == "compare" else "scales and rounds"
            row.payload_bits = max(map(abs, levels)).bit_length() + signed
            comparisons = _size(node) * (len(levels) - 1).bit_length()  # a binary search
            held = [x for name, x in tensors.items() if x is not None and name != "x"]
            row.threshold_bytes = sum(x.nbytes for x in held)
            width = "32-bit sums" if op == "compare" and not named["fraction"] else FIXED
            self._charge(node, "comparison", comparisons, width)
            if op == "fire":
                steps = [x for x in (tensors["positive"], tensors["negative"]) if x is not None]
                self._charge(node, f"neuron: {_factor([1 / step for step in steps])}", _size(node))
        elif op == "decode":
            units = [x for name in ("positive", "negative") if (x := tensors[name]) is not None]
            self._charge(node, f"value of a spike: {_factor(units)}", _size(node))
        elif op.startswith("matmul"):
            widths = (named[f"{side}_most"].bit_length() + named[f"{side}_signed"] for side in ("lhs", "rhs"))
            self._sum(row, node)
            width = " by ".join(f"{width}-bit" for width in widths)
            self._charge(node, "product of two counts", _size(node) * depth_of(node), f"{width} integers")
        else:  # a product with weights
            weight: Any = tensors["weight"]
            scale = tensors.get("scale")
            row.weight_bytes += weight.nbytes
            self._sum(row, node)
            if scale is not None:
                self._charge(node, f"sum: {_factor([scale], SUM_SHIFTS)}", _size(node))


def _levels(op: str, named: dict[str, Any]) -> tuple[list[int], bool]:
    """Return the counts between which a neuron decides, 0 among them, and whether some are negative."""
    if op == "compare":
        return named["values"], min(named["values"]) < 0
    return [0, *named["levels"]], named["sides"] != "positive"


def _factor(factors: list[Tensor], digits: int = SHIFTS) -> str:
    """Return how hardware multiplies by these constants: by shifting if they are sums of so many powers of two."""
    finite = [x.double()[x.isfinite() & (x != 0)] for x in factors]
    short = (torch.allclose(few_digits(x, digits), x, rtol=1e-6, atol=0.0) for x in finite)
    return SHIFTED if all(short) else MULTIPLIED


def _size(node: Any) -> int:
    size = 1
    for axis in node.meta["val"].shape:
        size *= int(concrete(axis))
    return size
