"""Folding of a graph: neurons become comparators, and the functions in front of them disappear.

Norms are written as rows and an affine map first, and a softmax as an exponential behind one logarithm per row, so that
thresholds take in the affine map and the exponential.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx

from onespike.deploy.exports.activation_products import multiply_
from onespike.deploy.exports.comparators import MOVES, POOLS, PRODUCTS, Comparator, comparator
from onespike.deploy.exports.graph import Graph, arguments, operation_of

NORMS = {"aten.layer_norm.default": ("weight", "bias"), "aten.rms_norm.default": ("weight",)}
SOFTMAX = ("aten.softmax.int", "aten._safe_softmax.default")
AFFINE = {"weight": torch.ops.aten.mul.Tensor, "bias": torch.ops.aten.add.Tensor}


def split_(graph: Graph) -> None:
    """Write norms as rows and their affine map, and softmax in front of neurons as an exponential."""
    nodes: Any = graph.program.graph
    for node in graph.calls:
        op, users = operation_of(node), list(node.users)
        result: fx.Node = node
        if op in NORMS:
            named = arguments(node)
            for part in NORMS[op]:
                if isinstance(named[part], fx.Node):
                    result = _behind(result, AFFINE[part], (result, named[part]), nodes)
            node.args, node.kwargs = (*node.args[:2], *(None for _ in NORMS[op]), named["eps"]), {}
        elif op in SOFTMAX and all(operation_of(user) == "spikes.fire" for user in users):
            node.target, node.args, node.kwargs = torch.ops.aten.log_softmax.int, node.args[:2], {}
            result = _behind(node, torch.ops.aten.exp.default, (node,), nodes)
        for user in users if result is not node else ():
            user.replace_input_with(node, result)


def _behind(node: fx.Node, target: Any, args: tuple[Any, ...], nodes: Any) -> fx.Node:
    """Return a new node of the same shape behind another one."""
    with nodes.inserting_after(node):
        made: fx.Node = nodes.call_function(target, args)
    made.meta = dict(node.meta)
    return made


def shift_(graph: Graph) -> None:
    """Divide by gains that depend on the input, which are powers of two, before the neuron."""
    nodes: Any = graph.program.graph
    for fire in graph.calls:
        if operation_of(fire) != "spikes.fire":
            continue
        named = arguments(fire)
        if not isinstance(named["gain"], fx.Node) or graph.tensor(named["gain"]) is not None:
            continue
        x = named["x"]
        with nodes.inserting_before(fire):
            for function, part in (
                (torch.ops.aten.sub.Tensor, "center"),
                (torch.ops.aten.div.Tensor, "gain"),
            ):
                if named[part] is not None:
                    x = nodes.call_function(function, (x, named[part]))
                    x.meta = dict(fire.meta)
        fire.args, fire.kwargs = tuple((named | {"x": x, "center": None, "gain": None}).values()), {}


MEANS = (
    "aten.mean.dim",
    "aten.avg_pool2d.default",
    "aten.avg_pool3d.default",
    "aten.adaptive_avg_pool2d.default",
)


def sum_(graph: Graph) -> None:
    """Write means over a fixed number of values as sums and a division, which thresholds take in."""
    nodes: Any = graph.program.graph
    for node in graph.calls:
        if operation_of(node) not in MEANS or (made := _summed(node, arguments(node))) is None:
            continue
        users = list(node.users)
        node.target, node.args, number = made
        node.kwargs = {}
        mean = _behind(node, torch.ops.aten.div.Tensor, (node, number), nodes)
        for user in users:
            user.replace_input_with(node, mean)


def _summed(node: fx.Node, named: dict[str, Any]) -> tuple[Any, tuple[Any, ...], int] | None:
    """Return the sum behind a mean: its operation, its arguments, and of how many values; None if that differs by place."""
    x, op = named["self"], operation_of(node)
    size = x.meta["val"].shape
    if op == "aten.mean.dim":
        counted = [size[axis] for axis in named["dim"] or range(len(size))]
        target: Any = torch.ops.aten.sum.dim_IntList
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
        target = getattr(torch.ops.aten, "avg_pool2d" if len(size) == 4 else "avg_pool3d").default
        args = (x, named["kernel_size"], named["stride"], named["padding"], False, True, 1)
    if any(isinstance(number, torch.SymInt) for number in counted):
        return None
    return target, args, prod(counted)


def fold_(graph: Graph, whole: bool = False) -> dict[str, Comparator]:
    """Put a comparator in place of each neuron that has one, and remove the functions that nothing else reads.

    `whole` folds all functions of a chain, whatever memory the thresholds take, and leaves means as they are.
    """
    if not whole:
        sum_(graph)
    multiply_(graph)
    split_(graph)
    shift_(graph)
    nodes: Any = graph.program.graph
    folded = dict[str, Comparator]()
    for fire in [node for node in graph.calls if operation_of(node) == "spikes.fire"]:
        made = comparator(fire, graph, whole)
        site = arguments(fire)["site"]
        if made is None:
            continue
        decided, path = made
        pools = any(operation_of(node) in POOLS for node in path.nodes)
        if pools and (decided.sign is not None or len(set(decided.values)) < len(decided.values)):
            continue
        held = {"thresholds": decided.thresholds, "sign": decided.sign}
        with nodes.inserting_before(next(iter(nodes.nodes))):
            stored = {
                part: None if tensor is None else nodes.placeholder(f"{part}_{len(graph.held)}_{len(folded)}")
                for part, tensor in held.items()
            }
        for part, node in stored.items():
            if node is not None:
                graph.held[node.name] = (f"{part}.{site}", held[part])
        with nodes.inserting_before(fire):
            x = path.source
            if operation_of(x) in PRODUCTS:
                x = _sums(x, nodes)
            for node in path.nodes:
                if operation_of(node) in MOVES or operation_of(node) in POOLS:
                    moved = nodes.call_function(node.target, (x, *node.args[1:]), dict(node.kwargs))
                    moved.meta, x = dict(node.meta), moved
            compare = nodes.call_function(
                torch.ops.spikes.compare.default,
                (x, stored["thresholds"], stored["sign"], decided.values, decided.fraction, site),
            )
        compare.meta = dict(fire.meta)
        fire.replace_all_uses_with(compare)
        folded[site] = decided
    nodes.eliminate_dead_code()
    return folded


def _sums(product: fx.Node, nodes: Any) -> fx.Node:
    """Return the integer sums of a product, before scale and bias."""
    named, op = arguments(product), PRODUCTS[operation_of(product)].removeprefix("spikes.")
    target = getattr(torch.ops.spikes, op).default
    args = tuple(named[argument.name] for argument in target._schema.arguments)
    made: fx.Node = nodes.call_function(target, args)
    made.meta = dict(product.meta)
    return made
