"""NIR: chains of products and elementwise functions as binary neurons, one for each threshold.

A neuron of the network is as many neurons of NIR as it has thresholds T on the integer sums S of its product, with
everything between folded in (`comparators.py`). Four nodes stand for a product and its neurons:

    product     S = Ŵ·counts
    levels      ±S − T + 1 for each threshold, so that `>` and `≥` agree on the IF's threshold of ½
    fire        IF: one spike for each threshold that S has reached; below count 0, for each that it has not
    values      the counts again: each spike times the difference of two counts

A max-pool of counts is a sum-pool of each threshold's spikes and one more neuron. All of it is integers in float32, so that
no simulator rounds. Only the coding of the network's input divides real numbers.
"""

import io
import warnings
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from onespike.conversion.weights import by_rows
from onespike.deploy.exports.base import Foreign, Request, example, export_format
from onespike.deploy.exports.comparators import MOST
from onespike.deploy.exports.comparison import Answer, Run
from onespike.deploy.exports.folded_graph import fold_
from onespike.deploy.exports.graph import Graph, arguments, graph_of, operation_of
from onespike.deploy.exports.nir_levels import (
    CHIP,
    SPIKING_INPUT,
    THRESHOLD,
    Fired,
    by_channel,
    of_input,
    of_sums,
    refuse,
    spread,
)
from onespike.deploy.exports.operations import PRODUCTS
from onespike.errors import OnespikeWarning, UsageError

SIZES = ("aten.sym_size.int", "mul")
SHAPES = ("aten.flatten.using_ints", "aten.view.default", "aten.reshape.default")
POOL = "aten.max_pool2d.default"
ANALOG = ("aten.linear.default", "aten.conv2d.default")
SPIKING = (*PRODUCTS, *PRODUCTS.values())
POINT = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
LARGE = 2**20
"""Of so many neurons, their number and the size of the file are stated before it is written."""


def read(file: Path) -> Run:
    """Return how Norse runs a graph."""
    import nir

    return Simulated(nir.read(file), {})


@export_format(
    "nir",
    read=read,
    suffix=".nir",
    needs=("nir", "nirtorch", "norse"),
    extra="nir",
    forms=(True,),
    scored=False,
)
def write(request: Request, file: Path) -> Foreign:
    """NIR, for networks without branches: binary neurons, one for each threshold; checked with Norse."""
    import nir
    import norse

    batch = example(request.batches)
    if not isinstance(batch, Tensor):
        raise refuse("this network takes more than one tensor")
    graph = graph_of(request.network, batch)
    graph.check_once("nir")
    chain = Chain(graph)
    facts = {f"onespike.{name}": str(fact) for name, fact in request.facts.items()}
    made = nir.NIRGraph(nodes=chain.nodes, edges=chain.edges, metadata=facts)
    if chain.neurons > LARGE:
        arrays = (array for node in chain.nodes.values() for array in vars(node).values())
        size = sum(getattr(array, "nbytes", 0) for array in arrays)
        warnings.warn(
            f"export: {chain.cost}, {size / 1e6:.0f} MB. Convert with fewer levels: preset='chip', io='spiking'.",
            OnespikeWarning,
            stacklevel=2,
        )  # fmt: skip
    nir.write(contents := io.BytesIO(), made)
    file.write_bytes(contents.getbuffer())  # HDF5 cannot close a file on a full disk
    fires = {site: chain.fires[site] for site in graph.sites}
    return Foreign(f"norse {norse.__version__}", Simulated(nir.read(file), fires), (chain.cost,))


class Chain:
    """The nodes and edges of a graph, written product by product.

    Attributes:
        fires: site → the node whose spikes are its counts, and how.
        product: the product that waits for its neuron.
        before: the neurons whose spikes come; None where a real value comes.
        between: pools and changes of shape between a product and its neuron.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, before = graph, graph.inputs[0]
        fires = map(arguments, graph.calls_of("spikes.fire"))
        self.coded = {named["site"]: named for named in fires if named["x"] is before}
        self.folded = fold_(graph, whole=True)
        self.nodes: dict[str, Any] = {}
        self.edges: list[tuple[str, str]] = []
        self.fires: dict[str, Fired] = {}
        self.product: fx.Node | None = None
        self.before: Fired | None = None
        self.between: list[fx.Node] = []
        self.neurons, self.last = 0, ""
        self._add("input", "Input", input_type={"input": _array(_shape(before))})
        for node in graph.calls:
            op = operation_of(node)
            if op in SIZES:
                continue
            if node.args[0] is not before:
                raise refuse(f"{_where(node)} has a branch ({op})")
            before = node
            if op in (*SPIKING, *ANALOG):
                self._multiply(node, op)
            elif op in (*SHAPES, POOL) and self.product is not None:
                self.between.append(node)
            elif op == "spikes.compare":
                self._fire(node, arguments(node)["site"])
            elif op == "spikes.row_gain":
                raise refuse(f"{_where(node)} has gains that depend on the input", CHIP)
            elif op == "spikes.fire":
                levels = len(arguments(node)["levels"])
                reason = f"{levels} levels" if levels > MOST // 2 else "no thresholds on integers"
                raise refuse(f"{_where(node)} has {reason}", CHIP)
            else:
                raise _obstacle(node)
        if self.product is None or self.between:
            raise refuse("the network does not end with a product")
        self._add("output", "Output", output_type={"output": _array(_shape(before))})
        counts = sum(prod(fired.shape) for fired in self.fires.values())
        self.cost: str = f"{self.neurons} binary neurons for {counts} counts of an input"

    def _add(self, name: str, kind: str, *args: Any, **facts: Any) -> None:
        """Write a node behind the last one."""
        import nir

        self.nodes[name] = getattr(nir, kind)(*args, **facts)
        if self.last:
            self.edges.append((self.last, name))
        self.last = name

    def _affine(self, name: str, weight: Tensor, bias: Tensor, size: tuple[int, ...], geometry: dict[str, Any] = POINT) -> None:  # fmt: skip
        """Write a linear map of vectors, or a convolution of images of this size."""
        kernel, added = weight.float().numpy(), bias.float().numpy()
        if len(size) == 1:
            self._add(name, "Affine", kernel, added)
            return
        wide = kernel.reshape(*kernel.shape, *[1] * (4 - kernel.ndim))
        stride, padding, dilation = (tuple(geometry[part]) for part in ("stride", "padding", "dilation"))
        self._add(name, "Conv2d", size[1:], wide, stride, padding, dilation, 1, added)

    def _multiply(self, node: fx.Node, op: str) -> None:
        """Write a product, and before it what the spikes that it receives are worth."""
        where, convolution, named = _where(node), "conv" in op, arguments(node)
        if op in ANALOG and (self.fires or where == "the output"):
            raise _analog(where)
        if node.meta["val"].dim() != (4 if convolution else 2):
            raise refuse(f"the product before {where} is neither of vectors nor of images")
        if convolution and named["groups"] != 1:  # nir takes the channels of a group for all of them
            raise refuse(f"the convolution before {where} has groups")
        if named.get("gain") is not None:
            raise refuse(f"the rows before {where} have gains", CHIP)
        weight, bias, scale = (self._double(named.get(part)) for part in ("weight", "bias", "scale"))
        if bias is not None and bias.dim() > 1:
            raise refuse(f"the bias before {where} differs by place", SPIKING_INPUT)
        if self.before is not None:
            self._values(self.before, [self._double(named.get(part)) for part in ("up", "down")], where)
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        weight = weight if scale is None else weight * by_rows(scale, weight)
        name = "output_layer" if where == "the output" else f"product{len(self.fires)}"
        self._affine(name, weight, bias, _shape(node.args[0]), POINT | named)
        self.product, self.before = node, None

    def _double(self, argument: Any) -> Any:
        tensor = self.graph.tensor(argument)
        return None if tensor is None else tensor.double()

    def _values(self, fired: Fired, units: list[Tensor | None], where: str) -> None:
        """Write what the spikes before a product are worth, in its units, and their change of shape."""
        one = torch.ones(1, dtype=torch.float64)
        wide = [(one if unit is None else unit).view(-1, *[1] * (len(fired.shape) - 1)) for unit in units]
        up, down = (by_channel(unit.expand(fired.shape).flatten(), fired.size[0], where) for unit in wide)
        worth, base = fired.levels.values(up, down)
        self._affine(f"{fired.node}_values", spread(worth).transpose(0, 1), base, fired.size)
        self.nodes[self.last].metadata = {"onespike.site": fired.site}
        if len(fired.shape) < len(fired.size):
            self._add(f"{fired.node}_flat", "Flatten", input_type={"input": _array(fired.size)}, start_dim=0)

    def _fire(self, node: fx.Node, site: str) -> None:
        """Write the neurons of a site: a row for each threshold, one IF, and what follows it."""
        size, final = _shape(self.graph.inputs[0] if self.product is None else self.product), _shape(node)
        if len(size) not in (1, 3):
            raise refuse(f"{site} codes an input of {len(size)} dimensions")
        if self.product is None:
            levels = of_input(self.coded[site], self.graph, size, site)
        else:
            pools = [node for node in self.between if operation_of(node) == POOL]
            windows = [(_shape(node)[1:], _shape(node.args[0])[1:], arguments(node)) for node in pools]
            levels = of_sums(self.folded[site], size, final, windows, site)
        copies, name = len(levels.moves), f"fire{len(self.fires)}"
        self._affine(f"{name}_levels", spread(levels.weight), levels.bias.flatten(), size)
        spikes = (copies * size[0], *size[1:])
        self._neurons(name, spikes, site, levels.above)
        for index, node in enumerate(self.between):
            if operation_of(node) == POOL:
                spikes = self._pool(node, f"{name}_{index}", spikes, site)
            elif len(_shape(node)) != 1:
                raise refuse(f"the shape changes before {site}")
        self.before = self.fires[site] = Fired(self.last, site, levels, (size[0], *spikes[1:]), final)
        self.product, self.between = None, []

    def _neurons(self, name: str, size: tuple[int, ...], site: str, above: Tensor | None = None) -> None:
        threshold = torch.full(size, THRESHOLD)
        threshold = threshold if above is None else threshold + above.float()
        self._add(name, "IF", torch.ones(size).numpy(), threshold.numpy(), metadata={"onespike.site": site})
        self.neurons += threshold.numel()

    def _pool(self, node: fx.Node, name: str, spikes: tuple[int, ...], site: str) -> tuple[int, ...]:
        """Write a max-pool of the spikes of each threshold; return the size of its result."""
        pool, pooled = arguments(node), (spikes[0], *_shape(node)[1:])
        if any(n != 0 for n in pool["padding"]) or any(n != 1 for n in pool["dilation"]) or pool["ceil_mode"]:
            raise refuse(f"the max-pool before {site} has a padding or a dilation, or rounds up")
        kernel = pool["kernel_size"]
        self._add(f"{name}_pool", "SumPool2d", *map(_array, (kernel, pool["stride"] or kernel, (0, 0))))
        self._neurons(f"{name}_any", pooled, site)
        return pooled


def _array(numbers: Any) -> Any:
    return torch.tensor(numbers).numpy()  # `import onespike` must do without numpy


def _shape(node: Any) -> tuple[int, ...]:
    """Return the size of one input's part of a result."""
    return tuple(int(n) for n in node.meta["val"].shape[1:])


def _obstacle(node: fx.Node) -> UsageError:
    """Return the error for the function that no threshold could take in, the last one before a neuron."""
    obstacle, ends = node, ("spikes.compare", "output", *SPIKING, *ANALOG)
    while len(readers := list(node.users)) == 1 and operation_of(readers[0]) not in ends:
        node = readers[0]
        obstacle = obstacle if operation_of(node) in SHAPES else node
    if readers and operation_of(readers[0]) in ANALOG:
        return _analog(_where(node))
    return refuse(f"{operation_of(obstacle)} stands before {_where(node)}")


def _analog(where: str) -> UsageError:
    return UsageError(
        f"export: nir has no ReLU, and the input of the product before {where} stays analog. Convert with io='spiking'."
    )


def _where(node: fx.Node) -> str:
    """Return the site that a node leads to, or the end."""
    seen = [node]
    while seen:
        reader = seen.pop(0)
        if operation_of(reader) in ("spikes.fire", "spikes.compare"):
            return str(arguments(reader)["site"])
        seen += list(reader.users)
    return "the output"


class Simulated:
    """A NIR graph in Norse, one input at a time, for one step of length 1."""

    def __init__(self, graph: Any, fires: dict[str, Fired]) -> None:
        with warnings.catch_warnings(action="ignore"):
            import norse.torch

            self.network = norse.torch.from_nir(graph, dt=1)
        self.fires, self.spikes = fires, dict[str, Tensor]()
        modules = dict(self.network.named_modules())
        for fired in fires.values():
            modules[fired.node].register_forward_hook(partial(self._keep, fired.node))

    def _keep(self, name: str, _: Any, __: Any, output: Any) -> None:
        self.spikes[name] = _first(output)

    def __call__(self, batch: Tensor) -> Answer:
        outputs, counts = [], {site: list[Tensor]() for site in self.fires}
        with torch.no_grad():
            for one in batch:
                outputs.append(_first(self.network(one)))
                for site, fired in self.fires.items():
                    counts[site].append(fired.counts(self.spikes[fired.node]))
        return Answer([torch.stack(outputs)], [(site, torch.stack(of)) for site, of in counts.items()])


def _first(output: Any) -> Any:
    """Return a result without the state of its neurons."""
    return output[0] if isinstance(output, tuple) else output
