"""The sheet of a network for hardware: per site what is stored and sent, per layer every operation that is no spike."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn

from onespike.deploy.exports.comparators import FRACTION, MOVES, POOLS, depth_of, largest_sum, sums_of
from onespike.deploy.exports.comparison import tensors
from onespike.deploy.exports.folded_graph import fold_
from onespike.deploy.exports.graph import Graph, arguments, concrete, graph_of, operation_of
from onespike.deploy.exports.operations import PRODUCTS
from onespike.runtime.batches import count, take
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


def sheet(network: nn.Module, batches: Sequence[Any]) -> Sheet:
    """Return the sheet of an integer form, with its spikes and sums on a few inputs."""
    batch = take(batches[0], slice(0, 4))
    graph = graph_of(network, batch)
    fold_(graph)
    rows = _Rows(graph, count(batch))
    for node in graph.calls:
        rows.add(node)
    runs = _Runs(graph, rows.sites, sum(map(count, batches)))
    for inputs in batches:
        runs.see(inputs)
    operations = [
        Operation(layer, name, number // rows.batch, width, floats)
        for (layer, name, width, floats), number in rows.operations.items()
    ]
    return Sheet(list(rows.sites.values()), operations)


class _Runs(fx.Interpreter):
    """Runs a folded graph and notes the spikes of each site, of so many inputs in all, and the largest sum behind it."""

    def __init__(self, graph: Graph, sites: dict[str, SiteSheet], inputs: int) -> None:
        graph.program.graph_module.recompile()
        super().__init__(graph.program.graph_module)
        self.of, self.sites, self.inputs = graph, sites, inputs

    def see(self, batch: Any) -> None:
        """Run one batch."""
        inputs = dict(zip(self.of.inputs, tensors(batch), strict=True))
        nodes = self.of.body.find_nodes(op="placeholder")
        self.batch = count(batch)
        self.run(*(inputs[node] if node in inputs else self.of.tensor(node) for node in nodes))

    def run_node(self, n: fx.Node) -> Any:
        sums = value = super().run_node(n)
        op = operation_of(n)
        if op in PRODUCTS:
            target, args = sums_of(n)
            sums = target(*fx.map_arg(args, lambda node: self.env[node]))
        if op in (*PRODUCTS, *PRODUCTS.values()):
            row = self.sites[arguments(n)["site"]]
            row.measured_bits = max(row.measured_bits, int(sums.abs().max()).bit_length() + 1)
        elif op in ("spikes.compare", "spikes.fire"):
            row, events = self.sites[arguments(n)["site"]], (value != 0).reshape(self.batch, -1).sum(1)
            row.events += float(events.sum()) / self.inputs
            row.most_events = max(row.most_events, int(events.max()))
            row.traffic_bytes = row.events * (row.payload_bits + (value[0].numel() - 1).bit_length()) / 8
        return value


class _Rows:
    """What the nodes of a graph take: rows of sites, and how often each operation of a layer runs, for a whole batch."""

    def __init__(self, graph: Graph, batch: int) -> None:
        self.graph, self.batch = graph, batch
        self.sites: dict[str, SiteSheet] = {}
        self.operations = Counter[tuple[str, str, str, bool]]()
        self.products = set[tuple[Any, ...]]()

    def _charge(
        self, node: fx.Node, name: str, number: int, width: str = FIXED, floats: bool = False
    ) -> None:
        *_, layer = ("", *(path for path, _ in node.meta.get("nn_module_stack", {}).values()))
        layer = layer.removeprefix("network").partition(".integer_")[0].partition(".neurons.")[0].strip(".")
        self.operations[layer, name, width, floats] += number

    def add(self, node: fx.Node) -> None:
        """Add one node to the sheet; what only moves elements costs nothing."""
        op, result = operation_of(node), node.meta.get("val")
        if op.startswith("spikes."):
            self._site(node, op.removeprefix("spikes."), arguments(node))
        elif isinstance(result, Tensor) and result.is_floating_point() and op not in (*MOVES, *POOLS):
            if op not in ANALOG and "conv" not in op:
                self._charge(node, op.split(".")[1], _size(node))
                return
            operands = [a for a in node.args if isinstance(a, fx.Node)]
            weight = next((x for x in map(self.graph.tensor, operands) if x is not None), None)
            if weight is not None:
                self._charge(
                    node, "product in floats", _size(node) * weight[0].numel(), "32-bit floats", True
                )
            else:
                depth = int(concrete(operands[0].meta["val"].shape[-1]))
                self._charge(node, "product of two activations", _size(node) * depth)

    def _site(self, node: fx.Node, op: str, named: dict[str, Any]) -> None:
        if op == "row_gain":
            self._charge(node, "rows measured", _size(named["x"]))
            return
        row = self.sites.setdefault(named["site"], SiteSheet(named["site"]))
        tensors = {name: x for name, value in named.items() if (x := self.graph.tensor(value)) is not None}
        if op in ("compare", "fire"):
            # the counts between which it decides, 0 among them
            levels = named["values"] if op == "compare" else [0, *named["levels"]]
            signed = min(levels) < 0 or named.get("sides", "positive") != "positive"
            row.decides = "compares" if op == "compare" else "scales and rounds"
            row.payload_bits = max(map(abs, levels)).bit_length() + signed
            row.threshold_bytes = sum(x.nbytes for name, x in tensors.items() if name != "x")
            width = "32-bit sums" if op == "compare" and not named["fraction"] else FIXED
            # a binary search
            self._charge(node, "comparison", _size(node) * (len(levels) - 1).bit_length(), width)
        units = [tensors[name] for name in ("positive", "negative") if name in tensors]
        if op == "fire":
            self._charge(node, f"neuron: {_factor([1 / step for step in units])}", _size(node))
        elif op == "decode":
            self._charge(node, f"value of a spike: {_factor(units)}", _size(node))
        elif op != "compare":
            self._product(node, row, named)
            if "scale" in tensors:
                self._charge(node, f"sum: {_factor([tensors['scale']], SUM_SHIFTS)}", _size(node))

    def _product(self, node: fx.Node, row: SiteSheet, named: dict[str, Any]) -> None:
        factors = tuple(named.get(part) for part in ("counts", "weight", "lhs", "rhs"))
        if factors in self.products:  # its values and its sums are read
            return
        self.products.add(factors)
        bits = largest_sum(node, self.graph).bit_length() + 1
        row.accumulator_bits = max(row.accumulator_bits, bits)
        row.state_bytes += _size(node) // self.batch * -(-bits // 8)
        if (weight := self.graph.tensor(named.get("weight"))) is not None:
            row.weight_bytes += weight.nbytes
            return
        bits_of = (named[f"{side}_most"].bit_length() + named[f"{side}_signed"] for side in ("lhs", "rhs"))
        width = " by ".join(f"{bits}-bit" for bits in bits_of)
        self._charge(node, "product of two counts", _size(node) * depth_of(node), f"{width} integers")


def _factor(factors: list[Tensor], digits: int = SHIFTS) -> str:
    """Return how hardware multiplies by these constants: by shifting if they are sums of so many powers of two."""
    finite = [x.double()[x.isfinite() & (x != 0)] for x in factors]
    short = (torch.allclose(few_digits(x, digits), x, rtol=1e-6, atol=0.0) for x in finite)
    return SHIFTED if all(short) else MULTIPLIED


def _size(node: fx.Node) -> int:
    return prod(concrete(tuple(node.meta["val"].shape)))
