"""A graph for runtimes that quantize: a neuron with uniform levels rounds to one byte.

    fire(x) = clip(round((x − center) / (gain·step)), low, high)

ONNX writes this as QuantizeLinear and Clip, and products behind it as products of bytes with a scale and a bias, which
runtimes do at once. Centers and steps by channel go into the product or the norm that the neuron alone reads, and a ReLU
in front of a neuron that fires one sign is left out. At every bound a neuron fires what it fires elsewhere; a number a few
units in the last place below a bound may fire, too.
"""

from collections import defaultdict
from contextlib import suppress
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from onespike.deploy.exports.comparators import BATCH_NORM, MOVES, POOLS, Chain, Step, overloads, shape_of
from onespike.deploy.exports.graph import Graph, arguments, operation_of
from onespike.deploy.exports.operations import BEFORE, least

EXACT_BYTE = 129
"""Two products of bytes up to here with weights up to ±127 fit into 16 bits: processors without VNNI saturate larger sums."""
SEVEN_BITS, EIGHT_BITS = 64, 128
"""The bytes that stand for 0 where counts have two signs."""
ATEN = torch.ops.aten
BASE = 128
"""The base of counts of two digits."""
LEAST_VALUES = {"aten.gelu.default": -0.1701, "aten.silu.default": -0.2785}
"""Functions that do not fall below these values."""
SILENT = 2.0**20
"""Behind such gains nothing fires, and they need not be multiplied again."""
AFFINE = overloads("add sub mul div") | {BATCH_NORM}
RELU = "aten.relu.default"
SOURCES = {
    "spikes.linear": ("scale", "bias", -1),
    "spikes.conv": ("scale", "bias", 1),
    "aten.layer_norm.default": ("weight", "bias", -1),
}
"""Operation → its factor and its summand by channel, and the axis of these."""


class Digit(NamedTuple):
    """One byte of a count: its ends, the byte that stands for 0, and what one is worth."""

    low: int
    high: int
    zero: int
    worth: int = 1


class Neuron(NamedTuple):
    """The arguments of a neuron's firing, and the bytes of its counts, the highest first."""

    named: dict[str, Any]
    digits: tuple[Digit, ...]
    within: bool = False
    """Whether no input reaches beyond its counts, as attention weights do not where one weight of 1 is a count."""

    @property
    def low(self) -> int:
        return self.digits[0].low

    @property
    def exact(self) -> bool:
        """Whether all products of its bytes with weights are exact."""
        return all(digit.high + digit.zero <= EXACT_BYTE for digit in self.digits)


class Affine(NamedTuple):
    """What a value is multiplied by, and what is added then, so that it counts a neuron's steps."""

    factor: Tensor
    summand: Tensor


def zero_of(low: int, high: int) -> int | None:
    """Return the byte that stands for 0; None if these counts do not fit into one byte.

    >>> zero_of(0, 255), zero_of(-64, 64), zero_of(-127, 127), zero_of(-255, 255)
    (0, 64, 128, None)
    """
    zero = 0 if low >= 0 else SEVEN_BITS if -low <= SEVEN_BITS else EIGHT_BITS
    return zero if low + zero >= 0 and high + zero <= 255 else None


def bytes_(graph: Graph) -> None:
    """Put roundings in place of neurons with uniform levels, and products of bytes in place of those behind them."""
    _simplify(graph)
    fires = graph.calls_of("spikes.fire")
    neurons = {fire: neuron for fire in fires if (neuron := _neuron(fire, graph)) is not None}
    pairs = [node for node in graph.calls_of("spikes.matmul") if _is_pair(node, neurons, graph)]
    affine, scales = _affine(neurons, pairs, graph)
    with graph.body.inserting_before(graph.calls[0]):
        one = graph.insert(torch.ops.spikes.one.default, graph.inputs[0])
    bytes_of = {fire: _rounded(fire, neuron, affine[fire], graph) for fire, neuron in neurons.items()}
    for node in pairs:
        factors = (arguments(node)[part] for part in ("lhs", "rhs"))
        lhs, rhs = ([*zip(bytes_of[fire], neurons[fire].digits, strict=True)] for fire in factors)
        _multiply_pair(node, lhs, rhs[0], one, scales.get(node), graph)
    for fire, neuron in neurons.items():
        digits = [*zip(bytes_of[fire], neuron.digits, strict=True)]
        for user in list(fire.users) if neuron.exact and len(digits) == 1 else ():
            if operation_of(user) in ("spikes.linear", "spikes.conv"):
                _multiply(user, bytes_of[fire][0], one, neuron.digits[0].zero, graph)
        with graph.body.inserting_before(fire):
            units = [
                None,
                *(graph.hold(f"base.{fire.name}", torch.tensor(float(d.worth))) for _, d in digits[:-1]),
            ]
            parts = [
                graph.insert(torch.ops.spikes.counts.default, byte, digit.zero, unit)
                for (byte, digit), unit in zip(reversed(digits), units, strict=True)
            ]
            fire.replace_all_uses_with(reduce(partial(graph.insert, ATEN.add.Tensor), parts))
    graph.body.eliminate_dead_code()


def _simplify(graph: Graph) -> None:
    """Write sums in front of norms so that runtimes leave them alone, and leave out masks that hide nothing."""
    for node in graph.calls_of("aten.layer_norm.default"):
        total: Any = node.args[0]
        if (
            operation_of(total) == "aten.add.Tensor"
            and all(map(graph.varies, total.args))
            and not total.kwargs
        ):
            total.target = torch.ops.spikes.plus.default
    for node in graph.calls_of("aten.masked_fill.Scalar"):
        x, mask = node.all_input_nodes[:2]
        if operation_of(mask) == "aten.bitwise_not.default" and _always(mask.args[0]):
            node.replace_all_uses_with(x)
            for softmax in list(x.users):
                if (
                    operation_of(softmax) == "aten._safe_softmax.default"
                    and operation_of(x) == "spikes.matmul"
                ):
                    softmax.target, softmax.kwargs = ATEN.softmax.int, {}


def _always(condition: Any) -> bool:
    """Whether a condition is that numbers counted from 0 are at least 0."""
    while operation_of(condition) in ("aten.expand.default", *MOVES):
        condition = condition.args[0]
    if operation_of(condition) != "aten.ge.Scalar" or condition.args[1] > 0:
        return False
    number = condition.args[0]
    while operation_of(number) in ("aten.add.Tensor", *MOVES):
        if operation_of(number) == "aten.add.Tensor" and number.args[1] != 0:
            return False
        number = number.args[0]
    return operation_of(number) == "aten.arange.default"


def _neuron(fire: fx.Node, graph: Graph) -> Neuron | None:
    """Return what a neuron fires; None unless its levels are even and fit into one byte, or into two for one sign."""
    named = arguments(fire)
    levels, sides = named["levels"], named["sides"]
    most = levels[-1]
    if sides == "both" or not levels == named["bounds"] == list(range(1, most + 1)):
        return None
    if sides == "positive" and most > 255 and most % BASE == SEVEN_BITS and most // BASE < EIGHT_BITS:
        step = graph.tensor(named["positive"])
        within = "softmax" in operation_of(named["x"]) and named["gain"] is None
        within = within and step is not None and float(step.min()) * most >= 1
        above = Digit(0, most // BASE, 0, BASE)
        return Neuron(named, (above, Digit(-SEVEN_BITS, SEVEN_BITS, SEVEN_BITS)), within)
    low = 0 if sides == "positive" else -most
    high = 0 if sides == "negative" else most
    zero, least_count = zero_of(low, high), _least_count(named, graph)
    if high + SEVEN_BITS > EXACT_BYTE >= high + least_count:
        low, zero = -least_count, least_count
    return None if zero is None else Neuron(named, (Digit(low, high, zero),))


def _least_count(named: dict[str, Any], graph: Graph) -> int:
    """Return how many steps below 0 a neuron's input may reach."""
    least_value = LEAST_VALUES.get(operation_of(named["x"]), -torch.inf)
    step, center, gain = (graph.tensor(named[part]) for part in ("positive", "center", "gain"))
    if step is None or least_value == -torch.inf or graph.varies(named["gain"]):
        return EIGHT_BITS
    below = (least_value - (0.0 if center is None else center)) / step
    below = below if gain is None else below / gain.min()
    return int((0.5 - below).clamp(min=0).max())


def _is_pair(node: fx.Node, neurons: dict[fx.Node, Neuron], graph: Graph) -> bool:
    """Whether both factors are bytes, the second of seven bits, with one unit along the sum."""
    named = arguments(node)
    lhs, rhs, gain = neurons.get(named["lhs"]), neurons.get(named["rhs"]), graph.tensor(named["rhs_gain"])
    if lhs is None or rhs is None or not lhs.exact or rhs.digits[0].high + rhs.digits[0].zero >= EIGHT_BITS:
        return False
    return gain is None or torch.equal(gain, least(gain).expand_as(gain))


def _inside(neurons: dict[fx.Node, Neuron], graph: Graph) -> set[fx.Node]:
    """Return the nodes that lead to these neurons alone and leave each element to itself; ReLUs where one sign fires behind."""
    inside = set[fx.Node]()
    one_sided = {fire for fire, at in neurons.items() if at.low == 0 and at.named["center"] is None}
    for node in reversed(graph.calls):
        op, readers = operation_of(node), set(node.users)
        moves = op in MOVES or op in POOLS or op == RELU
        if not readers <= inside | neurons.keys() or not (moves or op in AFFINE):
            continue
        if op != RELU or readers <= one_sided:
            inside.add(node)
        if moves and readers <= one_sided:
            one_sided.add(node)
    return inside


def _affine(
    neurons: dict[fx.Node, Neuron], pairs: list[fx.Node], graph: Graph
) -> tuple[dict[fx.Node, Affine], dict[fx.Node, Tensor]]:
    """Return what is left to do before each neuron, and the one scale of each pair whose units are in it.

    The functions on the way are taken out, and what a source can do by channel it does.
    """
    inside, result, scales = _inside(neurons, graph), dict[fx.Node, Affine](), dict[fx.Node, Tensor]()
    groups = defaultdict[fx.Node, dict[fx.Node, Chain]](dict)
    for fire in neurons:
        chain = Chain(fire, graph, inside)
        groups[chain.source][fire] = chain
    for source, chains in groups.items():
        passed = {node for chain in chains.values() for node in chain.nodes}
        alone = set(source.users) <= passed | chains.keys()
        paired = alone and source in pairs
        try:
            affine = {fire: _constants(neurons[fire], chain, paired) for fire, chain in chains.items()}
        except ValueError:  # only what is at the neuron itself
            direct = {fire: Chain(fire, graph, ()) for fire in chains}
            result |= {fire: _constants(neurons[fire], chain, False) for fire, chain in direct.items()}
            continue
        for chain in chains.values():
            for node in chain.nodes:
                if operation_of(node) == RELU or operation_of(node) in AFFINE:
                    node.replace_all_uses_with(chain.moving(node)[0])
        if paired:
            scale = scales[source] = torch.stack([part.factor.max() for part in affine.values()]).max()
            affine = {fire: part._replace(factor=part.factor / scale) for fire, part in affine.items()}
        elif alone and operation_of(source) in SOURCES:
            with suppress(ValueError):
                _fold(source, chains, affine, graph)
                one = Affine(torch.ones(()), torch.zeros(()))
                affine = dict.fromkeys(affine, one)
        result |= affine
    return result, scales


def _constants(neuron: Neuron, chain: Chain, paired: bool) -> Affine:
    """Return what a chain does in all, from the sums of a pair or from the value of its source on, in steps of the neuron."""
    ops = [operation_of(node) for node in chain.nodes]
    if any(op in POOLS for op in ops) and any(op in AFFINE for op in ops):
        raise ValueError("a pool takes the largest before a factor, which may be negative")
    chain.nodes = [node for node, op in zip(chain.nodes, ops, strict=True) if op != RELU]
    steps: list[Step] = [*(chain.product() if paired else ()), *chain.steps()]

    def value(start: float) -> Tensor:
        return reduce(lambda x, step: step.function(x), steps, torch.tensor(start, dtype=torch.float64))

    named, end = neuron.named, len(chain.nodes)
    side = "negative" if named["sides"] == "negative" else "positive"
    step = chain.constant(named[side], chain.shape, end)
    center = chain.constant(named["center"], chain.shape, end) if named["center"] is not None else 0.0
    factor, summand = (value(1.0) - value(0.0)) / step, (value(0.0) - center) / step
    return Affine(*(part.squeeze(-1) if part.dim() else part for part in (factor, summand)))


def _fold(source: fx.Node, chains: dict[fx.Node, Chain], affine: dict[fx.Node, Affine], graph: Graph) -> None:
    """Give a product or a norm the factors and summands of all that it leads to, by channel."""
    named, (factor_name, summand_name, axis) = arguments(source), SOURCES[operation_of(source)]
    shape = shape_of(source)
    rows = (-1, *[1] * (len(shape) - 1 - axis % len(shape)))
    channels = torch.arange(shape[axis])
    factors, summands = torch.zeros(2, len(channels), dtype=torch.float64)
    parts = []
    for fire, chain in chains.items():
        at = chain.at_site(channels.view(rows), shape, 0).squeeze(-1)
        factor, summand, at = torch.broadcast_tensors(*affine[fire], at)
        factors[at.long()], summands[at.long()] = factor, summand
        parts.append((factor, summand, at.long()))
    if any(not (torch.equal(factors[at], f) and torch.equal(summands[at], s)) for f, s, at in parts):
        raise ValueError("it differs within a channel")
    factor, summand = graph.tensor(named[factor_name]), graph.tensor(named[summand_name])
    factor = factors if factor is None else factor * factors
    if summand is not None:
        wide = rows if summand.dim() > 1 else (-1,)
        summands = summand * factors.view(wide) + summands.view(wide)
    for name, part in ((factor_name, factor), (summand_name, summands)):
        named[name] = graph.hold(f"{name}.{source.name}", part.float())
    source.args, source.kwargs = tuple(named.values()), {}


def _rounded(fire: fx.Node, neuron: Neuron, affine: Affine, graph: Graph) -> list[fx.Node]:
    """Return the bytes of a neuron; they are moved in place of the values where nothing else is done to these.

    Runtimes are slow at scales along the last axis, where windows of convolutions have their channels, and have none along two.
    """
    x: Any = fire.args[0]
    image = any(operation_of(user) == "spikes.conv" for user in fire.users)
    gain = neuron.named["gain"]
    step, summand, held = 1 / affine.factor, affine.summand, graph.tensor(gain)
    if held is not None and _axes(step * held) <= {-2}:
        step, summand, gain = step * held, summand / held, None
    plain = (
        not bool(summand.any())
        and _axes(step) <= ({-4, -3, -2} if not image else set())
        and len(_axes(step)) < 2
    )
    moves = list[fx.Node]()
    with graph.body.inserting_before(fire):
        if not plain:
            x = graph.insert(ATEN.mul.Tensor, x, graph.hold(f"factor.{fire.name}", (1 / step).float()))
            if bool(summand.any()):
                x = graph.insert(ATEN.add.Tensor, x, graph.hold(f"summand.{fire.name}", summand.float()))
            step = torch.ones(())
        if gain is not None:
            x = graph.insert(ATEN.div.Tensor, x, gain)
        step = step.reshape(()) if step.numel() == 1 else step
        while not step.dim() and gain is None and _moves_alone(x):
            moves.insert(0, x)
            x = x.args[0]
        if len(neuron.digits) > 1 and "softmax" not in operation_of(x):  # the lower digit has both signs
            x = graph.insert(ATEN.relu.default, x)
        result = []
        for digit in neuron.digits:
            scale = step * digit.worth
            unit = (
                graph.hold(f"step{digit.worth}.{fire.name}", scale.float())
                if bool((scale != 1).any())
                else None
            )
            ends = (-digit.zero, 255 - digit.zero) if neuron.within else (digit.low, digit.high)
            facts = (*ends, digit.zero, neuron.named["site"])
            counts = graph.insert(torch.ops.spikes.round.default, x, unit, *facts)
            if digit.worth > 1:
                worth = graph.hold(f"worth.{fire.name}", (scale * BEFORE).float())
                value = graph.insert(torch.ops.spikes.counts.default, counts, digit.zero, worth)
                x = graph.insert(ATEN.sub.Tensor, x, value)
            for node in moves:
                counts = graph.insert(node.target, counts, *node.args[1:])
            result.append(counts)
    return result


def _axes(factor: Tensor) -> set[int]:
    """Return the axes, from the back, along which a factor differs."""
    return {place - factor.dim() for place, size in enumerate(factor.shape) if size > 1}


def _moves_alone(x: fx.Node) -> bool:
    """Whether a value is another one with its elements moved, which nothing else reads."""
    return operation_of(x) in MOVES and operation_of(x) != "getitem" and len(x.users) == 1


def _multiply_pair(
    node: fx.Node, lhs: list[tuple[fx.Node, Digit]], rhs: tuple[fx.Node, Digit], one: fx.Node, scale: Tensor | None,
    graph: Graph,
) -> None:  # fmt: skip
    """Multiply two activations as bytes, and by their units once; with a scale, whoever reads the result does the rest."""
    named = arguments(node)
    units: Any = [graph.tensor(named[part]) for part in ("lhs_unit", "rhs_unit")]
    unit = units[0] * units[1]
    gain, parts = graph.tensor(named["rhs_gain"]), list[Any]()
    if scale is None:
        scale, parts = unit.max(), [named["lhs_gain"]]
        parts += [graph.hold(f"unit.{node.name}", unit / scale)] if bool((unit != scale).any()) else []
        parts += [] if gain is None else [graph.hold(f"gain.{node.name}", least(gain))]
    sums = list[fx.Node]()
    with graph.body.inserting_before(node):
        for byte, digit in lhs:
            held = graph.hold(f"scale{digit.worth}.{node.name}", (scale * digit.worth).float())
            zeros = (digit.zero, rhs[1].zero)
            sums.append(graph.insert(torch.ops.spikes.byte_pairs.default, byte, rhs[0], one, held, *zeros))
        value = reduce(partial(graph.insert, ATEN.add.Tensor), sums)
        for part in parts:
            value = value if part is None else graph.insert(ATEN.mul.Tensor, value, part)
    node.replace_all_uses_with(value)


def _multiply(product: fx.Node, counts: fx.Node, one: fx.Node, zero: int, graph: Graph) -> None:
    """Multiply a weight with bytes, and by its scale, and add its bias, all at once."""
    named = arguments(product)
    if named["up"] is not None or named.get("groups", 1) > 1:
        return
    bias, gain = named["bias"], named.get("gain")
    held = graph.tensor(gain)
    gain = None if held is not None and bool(((held == 1) | (held >= SILENT)).all()) else gain
    later = bias is not None and (gain is not None or bias.meta["val"].dim() > 1)
    factors = (named["weight"], one, named["scale"], None if later else bias)
    geometry = [named.get(part, []) for part in ("stride", "padding", "dilation")]
    with graph.body.inserting_before(product):
        value = graph.insert(torch.ops.spikes.product.default, counts, *factors, *geometry, zero)
        if gain is not None:
            value = graph.insert(ATEN.mul.Tensor, value, gain)
        value = graph.insert(ATEN.add.Tensor, value, bias) if later else value
    product.replace_all_uses_with(value)
