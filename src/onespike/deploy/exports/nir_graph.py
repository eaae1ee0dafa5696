"""NIR: chains of products and ReLUs as binary neurons, one copy of a neuron per level.

A product's row is copied for each level, and its bias holds the level's integer threshold T:

    S − T + 1½ > 1   ⟺   S ≥ T,   S the sum of 8-bit weights and spikes, so that `>` and `≥` agree

The product behind takes the copies with weights Δy·Ŵ, Δy the difference of two levels. A max-pool of counts is a sum-pool of
each level's spikes and one more neuron. Everything is an integer in float32, so that no simulator rounds.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from onespike.conversion.weights import by_rows
from onespike.deploy.exports.base import Foreign, Request, Run, example, export_format
from onespike.deploy.exports.comparators import LARGEST, first_integers
from onespike.deploy.exports.comparison import Answer
from onespike.deploy.exports.graph import Graph, arguments, marked, operation_of, trace
from onespike.errors import UsageError

SIZES = ("aten.sym_size.int", "mul")
SHAPES = ("aten.flatten.using_ints", "aten.view.default", "aten.reshape.default")
PRODUCTS = ("spikes.linear", "spikes.conv", "aten.linear.default", "aten.conv2d.default")
PLAIN = "Convert with preset='sformer' and io='spiking', or try format='integers'."
"""The remedy for what the passes have made."""
POINT = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
Copies = list[float]
"""Of each copy of a neuron, the difference of two levels that its spike is worth, with the sign of its side."""


def refuse(reason: str, remedy: str = "Try format='integers'.") -> UsageError:
    """Return the error for what NIR cannot hold, with the format that can."""
    return UsageError(f"export: nir holds chains of products and ReLUs alone: {reason}. {remedy}")


def read(file: Path) -> Run:
    """Return how Norse runs a graph."""
    import nir

    simulated = Simulated(nir.read(file), {})
    return lambda batch: simulated(batch).outputs


@export_format(
    "nir", read=read, suffix=".nir", needs=("nir", "nirtorch", "norse"), extra="nir", forms=(True,)
)
def write(request: Request, file: Path) -> Foreign:
    """NIR, for ReLU networks without branches: binary neurons, one for each level; checked with Norse."""
    import nir
    import norse

    batch = example(request.batches)
    if not isinstance(batch, Tensor):
        raise refuse("this network takes more than one tensor")
    network = marked(request.network, batch)
    chain = Chain(trace(network, batch, pure=True))
    nir.write(contents := io.BytesIO(), nir.NIRGraph(nodes=chain.nodes, edges=chain.edges))
    file.write_bytes(contents.getbuffer())  # HDF5 cannot close a file on a full disk
    fires = {site: chain.fires[site] for site in network.sites}
    return Foreign(f"norse {norse.__version__}", Simulated(nir.read(file), fires))


class Product(NamedTuple):
    """A product that waits for its neuron: the node, its arguments by name, and its tensors in double."""

    node: fx.Node
    arguments: dict[str, Any]
    weight: Tensor
    bias: Tensor
    scale: Tensor | None
    """None for a product of values."""
    times: tuple[Tensor | None, Tensor | None]
    """The units of a count of each sign."""


class Chain:
    """The nodes and edges of a graph, written product by product.

    Attributes:
        fires: site → the node whose spikes are its counts, and what they are worth.
        copies: of the neurons before; None where a real value comes.
        product: the product that waits for its neuron.
        between: pools and changes of shape between it and its neuron.
    """

    def __init__(self, graph: Graph) -> None:
        import nir

        self.graph, self.last = graph, "input"
        self.nodes: dict[str, Any] = {}
        self.edges: list[tuple[str, str]] = []
        self.fires: dict[str, tuple[str, Copies]] = {}
        self.copies: Copies | None = None
        self.product: Product | None = None
        self.between: list[fx.Node] = []
        before, rectified = graph.inputs[0], False
        self.nodes["input"] = nir.Input(input_type={"input": _shape(before)})
        for node in graph.calls:
            op = operation_of(node)
            if op in SIZES:
                continue
            if node.args[0] is not before:
                raise refuse(f"{_where(node)} has a branch ({op})")
            before = node
            if op in PRODUCTS:
                self.product, rectified = self._weighted(node, op), False
            elif op == "aten.relu.default" and self.product is not None:
                rectified = True  # its neuron fires on positive inputs alone
            elif op in (*SHAPES, "aten.max_pool2d.default"):
                self.between.append(node)
            elif op == "spikes.fire":
                self._fire(**arguments(node))
            else:
                raise refuse(f"{op} stands before {_where(node)}")
        if self.product is None or self.between or rectified:
            raise refuse("the network does not end with a product")
        weight, scale = self._copied(self.product), self.product.scale
        weight = weight if scale is None else weight * by_rows(scale, weight)
        self._affine(
            "output_layer", weight, self.product.bias, self.product.node.args[0], self.product.arguments
        )
        self._add("output", nir.Output(output_type={"output": _shape(before)}))

    def _add(self, name: str, node: Any) -> None:
        self.nodes[name] = node
        self.edges.append((self.last, name))
        self.last = name

    def _weighted(self, node: fx.Node, op: str) -> Product:
        """Read a product, and refuse what NIR cannot multiply."""
        where, convolution, named = _where(node), "conv" in op, arguments(node)
        if not op.startswith("spikes.") and (self.product is not None or self.copies is not None):
            raise UsageError(
                f"export: nir has no ReLU, and the input of the product before {where} stays analog. "
                "Convert with io='spiking'."
            )
        if node.meta["val"].dim() != (4 if convolution else 2):
            raise refuse(f"the product before {where} is neither of vectors nor of images")
        if convolution and named["groups"] != 1:
            raise refuse(f"the convolution before {where} has groups")
        weight, bias, scale, *times = (
            self._double(named.get(name)) for name in ("weight", "bias", "scale", "up", "down")
        )
        if bias is not None and bias.dim() > 1:
            raise refuse(f"the bias before {where} differs by place")
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        return Product(node, named, weight, bias, scale, tuple(times))

    def _double(self, argument: Any) -> Any:
        tensor = self.graph.tensor(argument)
        return None if tensor is None else tensor.double()

    def _copied(self, product: Product) -> Tensor:
        """Return the weight with one block of inputs per copy of the neurons before."""
        weight, (up, down) = product.weight, product.times
        if self.copies is None:
            return weight
        shape = (1, -1, *[1] * (weight.dim() - 2))
        blocks = [(weight * worth, up if worth > 0 else down) for worth in self.copies]
        return torch.cat([block if by is None else block * by.view(shape) for block, by in blocks], 1)

    def _affine(self, name: str, weight: Tensor, bias: Tensor, x: Any, geometry: dict[str, Any]) -> None:
        import nir

        kernel, added = weight.float().numpy(), bias.float().numpy()
        if weight.dim() == 2:
            self._add(name, nir.Affine(weight=kernel, bias=added))
            return
        size = tuple(int(n) for n in x.meta["val"].shape[2:])
        stride, padding, dilation = (tuple(geometry[part]) for part in ("stride", "padding", "dilation"))
        self._add(name, nir.Conv2d(size, kernel, stride, padding, dilation, 1, added))

    def _fire(
        self, x: fx.Node, center: Any, gain: Any, sides: str, levels: list[int], bounds: list[float], site: str, **steps: Any
    ) -> None:  # fmt: skip
        """Write a neuron: the waiting product with one row per level, one IF of threshold 1, and what follows it."""
        if center is not None or gain is not None:
            raise refuse(f"{site} has a center or gains", PLAIN)
        step = {1: self._double(steps["positive"]), -1: self._double(steps["negative"])}
        if any(side.numel() > 1 for side in step.values()):
            raise refuse(f"{site} has a step for each channel")
        signs = {"positive": (1,), "negative": (-1,)}.get(sides, (1, -1))
        jumps = torch.tensor(bounds, dtype=torch.float64) - 0.5
        thresholds = torch.cat([sign * jumps * step[sign] for sign in signs])
        copies = [float(sign * (high - low)) for sign in signs for low, high in pairwise((0, *levels))]
        name, shape = f"fire{len(self.fires)}", _shape(x)
        if self.product is None:  # the network's own input
            if self.copies is not None or len(shape) not in (1, 3):
                raise refuse(f"{site} codes an input of {len(shape)} dimensions")
            weight = torch.cat([torch.eye(shape[0], dtype=torch.float64) / t for t in thresholds])
            weight = weight if len(shape) == 1 else weight[..., None, None]
            self._affine(f"{name}_levels", weight, torch.zeros(len(weight)), x, POINT)
        else:
            if signs != (1,):
                raise refuse(f"{site} fires on negative inputs, which no ReLU leaves")
            product, weight = self.product, self._copied(self.product)
            if product.scale is None:
                rows, bias = (torch.cat([part / t for t in thresholds]) for part in (weight, product.bias))
            else:
                first = _thresholds(product.scale, product.bias, step[1], bounds)
                rows, bias = torch.cat([weight] * len(copies)), (1.5 - first).t().flatten()
            self._affine(f"{name}_levels", rows, bias, product.node.args[0], product.arguments)
            shape = _shape(product.node)
        size = (len(copies) * shape[0], *shape[1:])
        self._add(name, _neurons(size, 1.0))
        for index, node in enumerate(self.between):
            size = self._follow(node, f"{name}_{index}", size, len(copies))
        self.fires[site] = (self.last, copies)
        self.copies, self.product, self.between = copies, None, []

    def _follow(self, node: fx.Node, name: str, size: tuple[int, ...], copies: int) -> tuple[int, ...]:
        """Write a max-pool of the levels' spikes, or a change of shape; return the size of its result."""
        import nir

        shape = _shape(node)
        if operation_of(node) in SHAPES:
            if len(shape) != 1:
                raise refuse(f"the shape changes before {_where(node)}")
            self._add(f"{name}_flat", nir.Flatten(input_type={"input": _array(size)}, start_dim=0))
            return (copies * int(shape[0]),)
        pool = arguments(node)
        if any(n != 0 for n in pool["padding"]) or any(n != 1 for n in pool["dilation"]):
            raise refuse(f"the max-pool before {_where(node)} has a padding or a dilation")
        kernel = pool["kernel_size"]
        parts = (_array(part) for part in (kernel, pool["stride"] or kernel, (0, 0)))
        self._add(f"{name}_pool", nir.SumPool2d(*parts))
        pooled = (size[0], *(int(n) for n in shape[1:]))
        self._add(f"{name}_any", _neurons(pooled, 0.5))
        return pooled


def _shape(node: fx.Node) -> Any:
    """Return the size of one input's part of a result."""
    return _array(node.meta["val"].shape[1:])


def _array(sizes: Iterable[int]) -> Any:
    return torch.tensor([int(n) for n in sizes]).numpy()


def _where(node: fx.Node) -> str:
    """Return the site that a node leads to, or the end."""
    seen = [node]
    while seen:
        reader = seen.pop(0)
        if operation_of(reader) == "spikes.fire":
            return str(arguments(reader)["site"])
        seen += list(reader.users)
    return "the output"


def _neurons(size: tuple[int, ...], threshold: float) -> Any:
    import nir

    ones = torch.ones([int(n) for n in size]).numpy()
    return nir.IF(r=ones, v_threshold=threshold * ones, v_reset=0 * ones)


class Simulated:
    """A NIR graph in Norse, one input at a time, for one step of length 1."""

    def __init__(self, graph: Any, fires: dict[str, tuple[str, Copies]]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import norse.torch

            self.network = norse.torch.from_nir(graph, dt=1)
        self.fires, self.spikes = fires, dict[str, Tensor]()
        modules = dict(self.network.named_modules())
        for name, _ in fires.values():
            modules[name].register_forward_hook(partial(self._keep, name))

    def _keep(self, name: str, _: Any, __: Any, output: Any) -> None:
        self.spikes[name] = output[0] if isinstance(output, tuple) else output

    def __call__(self, batch: Tensor) -> Answer:
        outputs, counts = [], {site: list[Tensor]() for site in self.fires}
        with torch.no_grad():
            for one in batch:
                output = self.network(one)
                outputs.append(output[0] if isinstance(output, tuple) else output)
                for site, (name, copies) in self.fires.items():
                    levels = self.spikes[name].chunk(len(copies))
                    signed = [spikes * worth for spikes, worth in zip(levels, copies, strict=True)]
                    counts[site].append(torch.stack(signed).sum(0))
        return Answer([torch.stack(outputs)], [(site, torch.stack(of)) for site, of in counts.items()])


def _thresholds(scale: Tensor, bias: Tensor, step: Tensor, bounds: Sequence[float]) -> Tensor:
    """Return the smallest sum behind a ReLU that fires each level, [outputs, levels]."""
    jumps = torch.tensor(bounds, dtype=torch.float64)
    slope, start, size = (x.double().flatten().expand(len(scale))[:, None] for x in (scale, bias, step))
    ends = torch.full((len(scale), len(jumps)), float(LARGEST), dtype=torch.float64)
    return first_integers(lambda s: (s * slope + start).clamp(min=0) / size + 0.5 >= jumps, -ends, ends)
