"""Comparators: a neuron behind functions compares integers, and the functions disappear.

    fire(f(scale·S + bias)) = values[number of thresholds ≤ S]

f is a chain of functions of single elements between a product and the neuron: ReLU, GELU, an affine map by channel, a
max-pool. Each threshold is one integer, found by bisection on the chain in float64, so that a comparator fires what the
neuron behind the functions fires, to the count. Where no product precedes, the integers are those of a fixed-point value:
a residual sum, or a row that is brought to its mean and deviation, whose gains and biases are in the thresholds. A softmax
needs one logarithm per row: its exponentials are in the thresholds, too.
"""

import operator
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from onespike.deploy.exports.graph import Graph, arguments, concrete, operation_of
from onespike.deploy.exports.operations import PRODUCTS, least
from onespike.spikes.code import MOST_CUTS

FRACTION = 20
"""Fixed-point values are multiples of 2⁻²⁰."""
INPUT_FRACTION = 30
"""Inputs of the network are compared as they come: a float32 from 2⁻⁷ on is a multiple of 2⁻³⁰."""
LARGEST, LARGEST_VALUE = 2**31 - 1, 2.0**24
MOST, SHORT = 512, 1024
"""No neuron has more counts; where it has more than `MOST_CUTS`, a table of so many numbers serves all channels."""
KINDS = (torch.int16, torch.int32, torch.int64)
POOLS = ("aten.max_pool1d.default", "aten.max_pool2d.default", "aten.max_pool3d.default")


def overloads(names: str) -> set[str]:
    packets = [getattr(torch.ops.aten, name) for name in names.split() if hasattr(torch.ops.aten, name)]
    return {f"aten.{packet.__name__}.{overload}" for packet in packets for overload in packet.overloads()}


MOVES = overloads(
    "view reshape _unsafe_view permute transpose t movedim flatten unflatten squeeze unsqueeze slice select unbind split "
    "split_with_sizes chunk roll pixel_shuffle pixel_unshuffle"
) | {"getitem"}
"""What only moves elements."""
MONOTONE = overloads(
    "relu sigmoid tanh hardtanh clamp clamp_min clamp_max relu6 hardsigmoid leaky_relu elu selu celu softplus exp log sqrt "
    "add sub mul div neg erf softsign rsub"
)
TURNS = dict.fromkeys(overloads("gelu"), -0.7517915246935645)
TURNS |= dict.fromkeys(overloads("silu"), -1.2784645427610738) | dict.fromkeys(overloads("hardswish"), -1.5)
TURNS |= dict.fromkeys(overloads("mish"), -1.1924312144)
"""Functions that fall up to here and rise from here on."""
TANH_TURN = -0.7524614143
BATCH_NORM = "aten.batch_norm.default"
FOLLOWED = {*MOVES, *POOLS, *MONOTONE, *TURNS, BATCH_NORM}


class Comparator(NamedTuple):
    """How a site fires: values[number of thresholds ≤ sign·integer], thresholds [.., cuts] for the shape of the site."""

    thresholds: Tensor
    values: list[int]
    sign: Tensor | None
    """−1 where the integer is compared negated; None for nowhere."""
    fraction: int
    """Bits behind the point of the integers; 0 for sums of a product."""

    def table(self) -> tuple[Tensor, Tensor | None]:
        """Return the thresholds, or where that is smaller their distinct rows and which of these each neuron has."""
        rows, places = self.thresholds.flatten(0, -2).unique(dim=0, return_inverse=True)
        places = narrow(places.view(self.thresholds.shape[:-1]))
        smaller = rows.nbytes + places.nbytes < self.thresholds.nbytes
        return (rows, places) if smaller else (self.thresholds, None)


class Step(NamedTuple):
    """One function of the chain, with its constants at the site."""

    function: Callable[[Tensor], Tensor]
    turn: float | None = None


def first_integers(fires: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Return the smallest integers from `low` up to `high` at which a condition holds that stays true; `high` for none.

    >>> first_integers(lambda s: s * 0.5 + 0.25 >= torch.tensor([0.5, 1.5]), torch.full((2,), -9.0), torch.full((2,), 9.0))
    tensor([1., 3.])
    """
    low, high = low - 1, high.clone()
    while bool(((high - low) > 1).any()):
        middle = ((low + high) / 2).floor()
        passed = fires(middle) & (middle > low)
        high, low = torch.where(passed, middle, high), torch.where(passed, low, torch.maximum(low, middle))
    return high


def largest_sum(product: fx.Node, graph: Graph) -> int:
    """Return what no sum of a product exceeds."""
    named = arguments(product)
    if "weight" not in named:
        return int(depth_of(product) * named["lhs_most"] * named["rhs_most"])
    weight: Any = graph.tensor(named["weight"])
    largest = int(weight.int().abs().flatten(1).sum(1).max())
    return min(LARGEST - 1, largest * int(named["most"]))


def depth_of(product: fx.Node) -> int:
    """Return how many numbers each sum of a product of two operands adds."""
    return int(concrete(arguments(product)["lhs"].meta["val"].shape[-1]))


def sums_of(product: fx.Node) -> tuple[Any, tuple[Any, ...]]:
    """Return the operation of a product's integer sums, before scale and bias, and its arguments."""
    named = arguments(product)
    target = getattr(torch.ops.spikes, PRODUCTS[operation_of(product)].removeprefix("spikes.")).default
    return target, tuple(named[argument.name] for argument in target._schema.arguments)


def shape_of(node: fx.Node) -> tuple[int, ...]:
    return tuple(concrete(size) for size in node.meta["val"].shape)


class Chain:
    """The nodes between integers and a neuron, from the integers on."""

    def __init__(self, fire: fx.Node, graph: Graph, followed: Container[fx.Node] | None = None) -> None:
        self.graph, self.nodes, self.source = graph, list[fx.Node](), arguments(fire)["x"]
        self.shape, self.followed = shape_of(self.source), followed
        while (before := self._before(self.source)) is not None:
            self.nodes.insert(0, self.source)
            self.source = before

    def moving(self, node: fx.Node) -> list[fx.Node]:
        """Return the values among the arguments of a node that depend on the input."""
        varying = [a for a in node.args if isinstance(a, fx.Node) and self.graph.varies(a)]
        return [a for a in varying if not isinstance(a.meta["val"], torch.SymInt)]

    def _before(self, node: Any) -> Any:
        """Return the one value that a node of the chain depends on; None where the chain begins."""
        op = operation_of(node)
        if op not in FOLLOWED or (self.followed is not None and node not in self.followed):
            return None
        moving = self.moving(node)
        divided = op.startswith("aten.div.") and (moving != [node.args[0]] or node.kwargs)
        return None if len(moving) != 1 or divided or isinstance(moving[0].meta["val"], bool) else moving[0]

    @property
    def moves(self) -> list[fx.Node]:
        """The nodes that are left when the functions are in the thresholds."""
        return [node for node in self.nodes if operation_of(node) in (*MOVES, *POOLS)]

    def at_site(self, constant: Tensor, shape: tuple[int, ...], place: int) -> Tensor:
        """Return a constant of a value before node number `place`, moved to the site; axes along which it is one are 1."""
        moved: Any = constant.double().expand(shape)
        for node in self.nodes[place:]:
            op = operation_of(node)
            if op in MOVES:
                function: Any = operator.getitem if op == "getitem" else node.target
                moved = function(moved, *concrete(node.args[1:]), **concrete(node.kwargs))
            elif op in POOLS:
                start = moved[(slice(None), slice(None), *[slice(0, 1)] * (moved.dim() - 2))]
                if not torch.equal(start.expand_as(moved), moved):
                    raise ValueError("a pool mixes places with different constants")
                moved = start.expand(shape_of(node))
        for axis in range(moved.dim()):
            first = moved.narrow(axis, 0, 1)
            if torch.equal(first.expand_as(moved), moved):
                moved = first
        if moved.dim() and moved.shape[0] > 1:
            raise ValueError("it differs by input")
        constants: Tensor = moved.unsqueeze(-1).clone()
        return constants

    def constant(self, argument: Any, shape: tuple[int, ...], place: int) -> Any:
        held = self.graph.tensor(argument)
        return concrete(argument) if held is None else self.at_site(held, shape, place)

    def steps(self) -> Iterator[Step]:
        """The functions of the chain."""
        for place, node in enumerate(self.nodes, 1):
            op = operation_of(node)
            if op == BATCH_NORM:
                yield from self._batch_norm(node, place)
            elif op not in (*MOVES, *POOLS):
                moving, shape = node.args.index(self.moving(node)[0]), shape_of(node)
                rest = [
                    None if n == moving else self.constant(a, shape, place) for n, a in enumerate(node.args)
                ]
                tanh = op.startswith("aten.gelu") and node.kwargs.get("approximate") == "tanh"
                yield Step(_partial(node, moving, rest), TANH_TURN if tanh else TURNS.get(op))

    def _batch_norm(self, node: fx.Node, place: int) -> Iterator[Step]:
        named, shape = arguments(node), shape_of(node)
        parts = [self.graph.tensor(named[n]) for n in ("running_mean", "running_var", "weight", "bias")]
        mean, var = (part.double() for part in parts[:2] if part is not None)
        gain = (var + named["eps"]).rsqrt() * (1.0 if parts[2] is None else parts[2].double())
        bias = -mean * gain + (0.0 if parts[3] is None else parts[3].double())
        rows = (1, -1, *[1] * (len(shape) - 2))
        for function, part in ((torch.mul, gain), (torch.add, bias)):
            yield Step(partial(function, self.at_site(part.view(rows), shape, place)))

    def product(self) -> Iterator[Step]:
        """What is behind the sums of a product: scale, gain of a row and bias, or the units and gains of two counts."""
        named, shape = arguments(self.source), shape_of(self.source)
        rows = (-1,) if operation_of(self.source) == "spikes.linear" else (-1, *[1] * (len(shape) - 2))
        for name in ("scale", "gain", "bias", "lhs_unit", "rhs_unit", "lhs_gain", "rhs_gain"):
            if self.graph.varies(named.get(name)):
                raise ValueError("a gain depends on the input")
            part = self.graph.tensor(named.get(name))
            if part is None:
                continue
            if name in ("scale", "bias") and part.dim() == 1:
                part = part.view(rows)
            part = self.at_site(least(part) if name == "rhs_gain" else part, shape, 0)
            yield Step(partial(torch.add if name == "bias" else torch.mul, part))


def _partial(node: fx.Node, moving: int, others: list[Any]) -> Callable[[Tensor], Tensor]:
    target: Any = node.target
    kwargs = concrete(node.kwargs)
    return lambda x: target(*others[:moving], x, *others[moving + 1 :], **kwargs)


def comparator(
    fire: fx.Node, graph: Graph, whole: bool = False
) -> tuple[Comparator, fx.Node, list[fx.Node]] | None:
    """Return how a neuron decides on integers, which these are, and the nodes that still move them; None if it is scaled and rounded.

    Long tables serve all channels at once, but of the `whole` chain of functions.
    """
    named = arguments(fire)
    signs = {"positive": (1,), "negative": (-1,)}.get(named["sides"], (-1, 1))
    counts = sorted({0, *(sign * level for sign in signs for level in named["levels"])})
    if len(counts) > MOST:
        return None
    path = Chain(fire, graph)
    # where the chain cannot carry its constants, what reaches the neuron is compared
    for source, nodes in ((path.source, path.nodes), (named["x"], [])):
        path.source, path.nodes = source, nodes
        with suppress(ValueError, RuntimeError):
            made = _compared(path, named, counts)
            if whole or len(counts) <= MOST_CUTS or made.thresholds.numel() <= SHORT:
                return made, source, path.moves
    return None


def _compared(path: Chain, named: dict[str, Any], counts: list[int]) -> Comparator:
    sums = operation_of(path.source) in PRODUCTS
    steps = [*(path.product() if sums else ()), *path.steps()]
    constants = [named[part] for part in ("positive", "negative", "center", "gain")]
    if any(map(path.graph.varies, constants)):
        raise ValueError("a gain depends on the input")
    fixed = [path.constant(part, path.shape, len(path.nodes)) for part in constants]
    facts = (named["sides"], list(named["levels"]), list(named["bounds"]), "")
    fraction = 0 if sums else INPUT_FRACTION if path.source.op == "placeholder" else FRACTION
    unit = 2.0**-fraction
    limit = largest_sum(path.source, path.graph) + 1 if sums else int(LARGEST_VALUE / unit)

    def value(integers: Tensor, number: int = len(steps)) -> Tensor:
        x = integers * unit
        for step in steps[:number]:
            x = step.function(x)
        return x

    def fired(integers: Tensor) -> Tensor:
        result: Tensor = torch.ops.spikes.fire(value(integers), *fixed, *facts)
        return result

    def cuts(counts: list[int], low: Tensor, high: Tensor) -> Tensor:
        """Return where a piece reaches each count after the first; counts rise or fall."""
        way, reached = (1 if counts[0] < counts[-1] else -1), torch.tensor(counts[1:], dtype=torch.float64)
        return first_integers(lambda s: way * (fired(s * sign) - reached) >= 0, low, high)

    turning = [place for place, step in enumerate(steps) if step.turn is not None]
    if len(turning) > 1:
        raise ValueError("it turns more than once")
    first = turning[0] if turning else len(steps)
    ends = torch.tensor([-float(limit), float(limit)], dtype=torch.float64)
    start, end = value(ends, first).expand_as(fired(ends)).unbind(-1)
    sign = torch.where(end < start, -1.0, 1.0)[..., None]
    high = torch.full((*sign.shape[:-1], len(counts) - 1), float(limit), dtype=torch.float64)
    low = -high
    if not turning:
        return _pruned(cuts(counts, low, high), counts, sign, fraction, limit)
    turn = float(steps[first].turn or 0.0)
    bottom = first_integers(lambda s: value(s * sign, first) >= turn, low[..., :1], high[..., :1])
    here, beyond = value(bottom * sign), value((bottom + 1 / unit) * sign)
    rises, falls = bool((here <= beyond).all()), bool((here >= beyond).all())
    if rises == falls:
        raise ValueError("it rises in one channel and falls in another")
    after = counts if rises else counts[::-1]
    before, middle = after[::-1], bottom.expand_as(low)
    thresholds = torch.cat([cuts(before, low, middle), cuts(after, middle, high)], -1)
    return _pruned(thresholds, [*before, *after[1:]], sign, fraction, limit)


def _pruned(thresholds: Tensor, values: list[int], sign: Tensor, fraction: int, limit: int) -> Comparator:
    """Leave out the levels that no integer fires."""
    columns = thresholds.flatten(0, -2)
    keep, least = list[int](), values[0]
    for number in range(columns.shape[1]):
        column = columns[:, number]
        if bool((column <= -limit).all()):
            least, keep = values[number + 1], []
        elif not bool((column >= limit).all()):
            later = columns[:, number + 1] if number + 1 < columns.shape[1] else None
            if later is None or not bool((later <= column).all()):
                keep.append(number)
    chosen = [least, *(values[number + 1] for number in keep)]
    signs = sign.squeeze(-1).float() if bool((sign < 0).any()) else None
    return Comparator(narrow(thresholds[..., keep].contiguous()), chosen, signs, fraction)


def narrow(integers: Tensor) -> Tensor:
    """Return integers in as few bytes as hold them all, two at least."""
    largest = int(integers.abs().max()) if integers.numel() else 0
    return integers.to(next(kind for kind in KINDS if largest <= torch.iinfo(kind).max))
