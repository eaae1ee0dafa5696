"""Folding of a graph: neurons become comparators, the functions in front of them disappear, and counts multiply counts.

Norms are written as rows and an affine map first, and a softmax as an exponential behind one logarithm per row, so that
thresholds take in the affine map and the exponential. Products of two activations become products of whole numbers:

    Σ_i (unit·gain·y)(unit'·gain'_i·y'_i) = unit·gain·unit'·min gain' · Σ_i y·(gain'_i / min gain')·y'_i

Gains of keys and values along the sum are powers of two, so that counts times their quotients are whole numbers.
"""

from functools import partial, reduce
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
from torch import fx

from onespike.deploy.exports.comparators import POOLS, Comparator, comparator, sums_of
from onespike.deploy.exports.graph import Graph, arguments, concrete, operation_of
from onespike.deploy.exports.operations import PRODUCTS, least

ATEN = torch.ops.aten
NORMS = {"aten.layer_norm.default": ("weight", "bias"), "aten.rms_norm.default": ("weight",)}
SOFTMAX = ("aten.softmax.int", "aten._safe_softmax.default")
AFFINE = {"weight": ATEN.mul.Tensor, "bias": ATEN.add.Tensor}
AVERAGES = ("avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d")
MEANS = ("aten.mean.dim", *(f"aten.{name}.default" for name in AVERAGES))


def fold_(graph: Graph, whole: bool = False) -> dict[str, Comparator]:
    """Put a comparator in place of each neuron that has one, and remove the functions that nothing else reads.

    `whole` folds all functions of a chain, whatever memory the thresholds take, and leaves means as they are.
    """
    if not whole:
        sum_(graph)
    multiply_(graph)
    split_(graph)
    shift_(graph)
    folded, sums = dict[str, Comparator](), dict[fx.Node, fx.Node]()
    for fire in graph.calls_of("spikes.fire"):
        decision = comparator(fire, graph, whole)
        if decision is None:
            continue
        by, x, moves = decision
        pools = any(operation_of(node) in POOLS for node in moves)
        if pools and (by.sign is not None or len(set(by.values)) < len(by.values)):
            continue
        site = arguments(fire)["site"]
        parts = zip(("thresholds", "rows", "sign"), (*by.table(), by.sign), strict=True)
        tensors = [None if part is None else graph.hold(f"{name}.{site}", part) for name, part in parts]
        with graph.body.inserting_before(fire):
            if operation_of(x) in PRODUCTS:
                if x not in sums:  # several neurons may read them, such as those of q, k and v
                    target, args = sums_of(x)
                    sums[x] = graph.insert(target, *args, like=x)
                x = sums[x]
            for node in moves:
                x = graph.insert(node.target, x, *node.args[1:], like=node)
                x.kwargs = node.kwargs
            facts = (*tensors, by.values, by.fraction, site)
            compare = graph.insert(torch.ops.spikes.compare.default, x, *facts, like=fire)
        fire.replace_all_uses_with(compare)
        folded[site] = by
    graph.body.eliminate_dead_code()
    return folded


def split_(graph: Graph) -> None:
    """Write norms as rows and their affine map, and softmax in front of neurons as an exponential."""
    for node in graph.calls:
        op, result = operation_of(node), node
        if op in NORMS:
            named = arguments(node)
            node.args, node.kwargs = (*node.args[:2], *(None for _ in NORMS[op]), named["eps"]), {}
            for part in NORMS[op]:
                if isinstance(named[part], fx.Node):
                    result = graph.insert_behind(result, AFFINE[part], result, named[part])
        elif op in SOFTMAX and all(operation_of(user) == "spikes.fire" for user in node.users):
            node.target, node.args, node.kwargs = ATEN.log_softmax.int, node.args[:2], {}
            graph.insert_behind(node, ATEN.exp.default, node)


def shift_(graph: Graph) -> None:
    """Divide by gains that depend on the input, which are powers of two, before the neuron."""
    for fire in graph.calls_of("spikes.fire"):
        named = arguments(fire)
        if not graph.varies(named["gain"]):
            continue
        with graph.body.inserting_before(fire):
            for function, part in ((ATEN.sub.Tensor, "center"), (ATEN.div.Tensor, "gain")):
                if named[part] is not None:
                    named["x"] = graph.insert(function, named["x"], named[part], like=fire)
        fire.args, fire.kwargs = tuple((named | {"center": None, "gain": None}).values()), {}


def sum_(graph: Graph) -> None:
    """Write means over a fixed number of values as sums and a division, which thresholds take in."""
    for node in graph.calls_of(*MEANS):
        if (made := _summed(node, arguments(node))) is not None:
            node.target, node.args, number = made
            node.kwargs = {}
            graph.insert_behind(node, ATEN.div.Tensor, node, number)


def _summed(node: fx.Node, named: dict[str, Any]) -> tuple[Any, tuple[Any, ...], int] | None:
    """Return the sum behind a mean: its operation, its arguments, and of how many values; None if that differs by place."""
    x = named["self"]
    size = x.meta["val"].shape
    if operation_of(node) == "aten.mean.dim":
        counted = [size[axis] for axis in named["dim"] or range(len(size))]
        target: Any = ATEN.sum.dim_IntList
        args: tuple[Any, ...] = (x, named["dim"], named["keepdim"])
    else:
        if "output_size" in named:
            image, places = size[2:], named["output_size"]
            if any(isinstance(n, torch.SymInt) or n % m for n, m in zip(image, places, strict=True)):
                return None
            counted = [n // m for n, m in zip(image, places, strict=True)]
            named = {"kernel_size": counted, "stride": counted, "padding": 0}
        elif named["ceil_mode"] or (not named["count_include_pad"] and any(named["padding"])):
            return None
        else:
            counted = [*named["kernel_size"]] * (1 if len(named["kernel_size"]) > 1 else len(size) - 2)
            counted = counted if named["divisor_override"] is None else [named["divisor_override"]]
        target = getattr(ATEN, "avg_pool2d" if len(size) == 4 else "avg_pool3d").default
        args = (x, named["kernel_size"], named["stride"], named["padding"], False, True, 1)
    if any(isinstance(number, torch.SymInt) for number in counted):
        return None
    return target, args, prod(counted)


class _Part(NamedTuple):
    """Counts of one unit: both signs, or one of them."""

    counts: fx.Node
    unit: Any
    gain: Any
    most: int
    signed: bool


def multiply_(graph: Graph) -> None:
    """Put a product of counts in place of each product of two decoded sites, where units are the same along the sum."""
    for node in graph.calls_of("aten.matmul.default", "aten.bmm.default"):
        first, second = node.all_input_nodes if len(node.all_input_nodes) == 2 else node.all_input_nodes * 2
        lhs, rhs = _parts(first, -1, graph), _parts(second, -2, graph)
        depth = int(concrete(first.meta["val"].shape[-1]))
        if not lhs or not rhs or depth * lhs[0].most * rhs[0].most >= 2**31:
            continue
        site, insert = arguments(first)["site"], partial(graph.insert, like=node)
        with graph.body.inserting_before(node):
            values = []
            for a, b in product(lhs, rhs):
                facts = (a.unit, b.unit, a.gain, b.gain, a.most, b.most, a.signed, b.signed, site)
                values.append(insert(torch.ops.spikes.matmul.default, a.counts, b.counts, *facts))
            total = reduce(partial(insert, ATEN.add.Tensor), values)
        node.replace_all_uses_with(total)
    graph.body.eliminate_dead_code()


def _parts(decode: fx.Node, axis: int, graph: Graph) -> list[_Part]:
    """Return an operand as counts of one unit each; none if it has an offset, or units that differ along this axis."""
    if operation_of(decode) != "spikes.decode":
        return []
    named = arguments(decode)
    fired, gain, sides = arguments(named["counts"]), named["gain"], named["sides"]
    counts, up, down = named["counts"], named["positive"], named["negative"]
    held, most = graph.tensor(gain), max(fired["levels"])
    units = map(graph.tensor, (up, down))
    apart = any(unit is None or (unit.dim() >= -axis and unit.shape[axis] > 1) for unit in units)
    if apart or named["offset"] is not None:
        return []
    if gain is not None and axis == -2:
        if held is None:
            return []
        times = held / least(held)
        if not torch.equal(times, times.round()):
            return []
        most *= int(times.max())
    elif gain is not None and concrete(gain.meta["val"].shape[-1]) > 1:
        return []
    if sides != "both":
        return [_Part(counts, down if sides == "negative" else up, gain, most, sides != "positive")]
    with graph.body.inserting_before(decode):
        above = graph.insert(ATEN.clamp.default, counts, 0, like=counts)
        below = graph.insert(ATEN.clamp.default, counts, None, 0, like=counts)
    return [_Part(above, up, gain, most, False), _Part(below, down, gain, most, True)]
