"""A graph for runtimes that quantize: a neuron with uniform levels rounds, clips and is one byte.

    fire(x) = clip(round((x − center) / (gain·step)), low, high)

ONNX writes this as QuantizeLinear, Clip and DequantizeLinear, and the product behind it between two DequantizeLinear, which
runtimes put together to products of bytes. At every bound it fires what the neuron fires; a number a few units in the last
place below a bound may fire, too.
"""

from functools import partial, reduce
from typing import Any

import torch
from torch import fx

from onespike.deploy.exports.graph import Graph, arguments, operation_of

EXACT_BYTE = 129
"""Two products of bytes up to here with weights up to ±127 fit into 16 bits: processors without VNNI saturate larger sums."""
SEVEN_BITS, EIGHT_BITS = 64, 128
"""The bytes that stand for 0 where counts have two signs."""
ATEN = torch.ops.aten


def zero_of(low: int, high: int) -> int | None:
    """Return the byte that stands for 0; None if these counts do not fit into one byte.

    >>> zero_of(0, 255), zero_of(-63, 63), zero_of(-127, 127), zero_of(-255, 255)
    (0, 64, 128, None)
    """
    zero = 0 if low >= 0 else SEVEN_BITS if -low < SEVEN_BITS else EIGHT_BITS
    return zero if low + zero >= 0 and high + zero <= 255 else None


def bytes_(graph: Graph) -> None:
    """Put roundings in place of neurons with uniform levels, and products of bytes in place of those behind them."""
    for fire in graph.calls_of("spikes.fire"):
        named = arguments(fire)
        levels, sides = named["levels"], named["sides"]
        low = 0 if sides == "positive" else -levels[-1]
        high = 0 if sides == "negative" else levels[-1]
        zero = zero_of(low, high)
        if sides == "both" or zero is None or not levels == named["bounds"] == list(range(1, levels[-1] + 1)):
            continue
        counts = _round(fire, named, low, high, graph)
        for product in list(counts.users) if high + zero <= EXACT_BYTE else ():
            if operation_of(product) == "spikes.linear":
                _multiply(product, graph)
    for product in graph.calls_of("aten.matmul.default"):
        _multiply_counts(product, graph)
    graph.body.eliminate_dead_code()


def _axes(factor: fx.Node | None) -> set[int]:
    """Return the axes, from the back, along which a factor may differ."""
    sizes = () if factor is None else factor.meta["val"].shape
    return {place - len(sizes) for place, size in enumerate(sizes) if size != 1}


def _round(fire: fx.Node, named: dict[str, Any], low: int, high: int, graph: Graph) -> fx.Node:
    """Center and scale a value, and round it.

    Runtimes are slow at scales along the last axis, where windows of convolutions have their channels, and have none along two.
    """
    x = named["x"]
    step = named["negative" if named["sides"] == "negative" else "positive"]
    image = any(operation_of(user) == "spikes.conv" for user in fire.users)
    with graph.body.inserting_before(fire):
        if named["center"] is not None:
            x = graph.insert(ATEN.sub.Tensor, x, named["center"])
        scale: Any = None
        for factor in (named["gain"], step):
            axes = _axes(factor) | _axes(scale)
            if factor is None:
                continue
            if graph.varies(factor) or -1 in axes or len(axes) > (0 if image else 1):
                x = graph.insert(ATEN.div.Tensor, x, factor)
            else:
                scale = factor if scale is None else graph.insert(ATEN.mul.Tensor, scale, factor)
        rounded = graph.insert(torch.ops.spikes.round.default, x, scale, low, high, False, named["site"])
    fire.replace_all_uses_with(rounded)
    return rounded


def _multiply(product: fx.Node, graph: Graph) -> None:
    named = arguments(product)
    if named["up"] is not None:
        return
    factors = (named["counts"], named["weight"], named["scale"])
    with graph.body.inserting_before(product):
        value = graph.insert(torch.ops.spikes.product.default, *factors)
        for target, part in ((ATEN.mul.Tensor, named["gain"]), (ATEN.add.Tensor, named["bias"])):
            value = value if part is None else graph.insert(target, value, part)
    product.replace_all_uses_with(value)


def _multiply_counts(product: fx.Node, graph: Graph) -> None:
    """Multiply two activations as counts, and by their steps once, where these are factors of the result."""
    decoded = [_source(argument) for argument in product.args]
    if any(operation_of(node) != "spikes.decode" for node in decoded):
        return
    named = [arguments(node) for node in decoded]
    counts = [part["counts"] for part in named]
    if any(operation_of(node) != "spikes.round" for node in counts) or any(part["offset"] for part in named):
        return
    factors = list[fx.Node]()
    for part, summed in zip(named, (-1, -2), strict=True):
        step = part["negative" if part["sides"] == "negative" else "positive"]
        of_part = [factor for factor in (step, part["gain"]) if factor is not None]
        if any(summed in _axes(factor) for factor in of_part):
            return
        factors += of_part
    (low, high), most = counts[0].args[2:4], counts[1].args[3]
    if 2 * (high + (zero_of(low, high) or 0)) * most < 2**15 and most < EIGHT_BITS:
        # unsigned times signed is the fastest
        counts[1].args = (*counts[1].args[:4], True, *counts[1].args[5:])
    with graph.body.inserting_before(product):
        scale = reduce(partial(graph.insert, ATEN.mul.Tensor), factors)
        value = graph.insert(ATEN.matmul.default, *counts)
        value = graph.insert(ATEN.mul.Tensor, value, scale)
    product.replace_all_uses_with(value)


def _source(node: Any) -> fx.Node:
    """Return what a value is before it is brought to the type that it has."""
    while operation_of(node) == "aten.to.dtype" and node.args[0].meta["val"].dtype == node.meta["val"].dtype:
        node = node.args[0]
    source: fx.Node = node
    return source
