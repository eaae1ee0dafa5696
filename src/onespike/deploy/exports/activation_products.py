"""Products of two activations as products of whole numbers: q·kᵀ and A·v of attention multiply counts with counts.

    Σ_i (unit·gain·y)(unit'·gain'_i·y'_i) = unit·gain·unit'·min gain' · Σ_i y·(gain'_i / min gain')·y'_i

Gains of keys and values along the sum are powers of two, so that counts times their quotients are whole numbers.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import torch
from torch import fx

from onespike.deploy.exports.graph import Graph, arguments, concrete, operation_of
from onespike.deploy.exports.operations import least

MATMULS = ("aten.matmul.default", "aten.bmm.default")


class _Part(NamedTuple):
    """Counts of one unit: both signs, or one of them."""

    counts: fx.Node
    unit: Any
    gain: Any
    most: int
    signed: bool


def multiply_(graph: Graph) -> None:
    """Put a product of counts in place of each product of two decoded sites, where units are the same along the sum."""
    nodes: Any = graph.program.graph
    for node in graph.calls:
        if operation_of(node) not in MATMULS:
            continue
        first, second = node.all_input_nodes if len(node.all_input_nodes) == 2 else node.all_input_nodes * 2
        lhs, rhs = _parts(first, -1, graph), _parts(second, -2, graph)
        depth = int(concrete(first.meta["val"].shape[-1]))
        if not lhs or not rhs or depth * lhs[0].most * rhs[0].most >= 2**31:
            continue
        site = arguments(first)["site"]
        with nodes.inserting_before(node):
            values = []
            for a, b in product(lhs, rhs):
                facts = (a.unit, b.unit, a.gain, b.gain, a.most, b.most, a.signed, b.signed, site)
                values.append(_call(nodes, node, torch.ops.spikes.matmul.default, a.counts, b.counts, *facts))
            total = values[0]
            for value in values[1:]:
                total = _call(nodes, node, torch.ops.aten.add.Tensor, total, value)
        node.replace_all_uses_with(total)
    nodes.eliminate_dead_code()


def _call(nodes: Any, like: fx.Node, target: Any, *args: Any) -> fx.Node:
    made: fx.Node = nodes.call_function(target, args)
    made.meta = dict(like.meta)
    return made


def _parts(decode: fx.Node, axis: int, graph: Graph) -> list[_Part]:
    """Return an operand as counts of one unit each; none if it has an offset, or units that differ along this axis."""
    if operation_of(decode) != "spikes.decode":
        return []
    named = arguments(decode)
    fired, gain, sides = arguments(named["counts"]), named["gain"], named["sides"]
    units = [graph.tensor(named[part]) for part in ("positive", "negative")]
    held, most = graph.tensor(gain), max(fired["levels"])
    if named["offset"] is not None or any(
        x is None or (x.dim() >= -axis and x.shape[axis] > 1) for x in units
    ):
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
    counts, up, down = named["counts"], named["positive"], named["negative"]
    if sides != "both":
        return [_Part(counts, down if sides == "negative" else up, gain, most, sides != "positive")]
    nodes: Any = graph.program.graph
    with nodes.inserting_before(decode):
        above = _call(nodes, counts, torch.ops.aten.clamp.default, counts, 0)
        below = _call(nodes, counts, torch.ops.aten.clamp.default, counts, None, 0)
    return [_Part(above, up, gain, most, False), _Part(below, down, gain, most, True)]
