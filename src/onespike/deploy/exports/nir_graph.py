"""NIR: chains of products and ReLUs as binary neurons, one copy of a neuron per level.

A product's row is copied for each level, and its bias holds the level's integer threshold T:

    S − T + 1½ > 1   ⟺   S ≥ T,   S the sum of 8-bit weights and spikes, so that `>` and `≥` agree

The product behind takes the copies with weights Δy·Ŵ, Δy the difference of two levels. A max-pool of counts is a sum-pool of
each level's spikes and one more neuron. Everything is an integer in float32, so that no simulator rounds.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from onespike.deploy.exports.base import Foreign, Request, Run, example, export_format
from onespike.deploy.exports.comparison import Answer
from onespike.deploy.exports.integers import LEFT_OUT, SAME, _name
from onespike.deploy.exports.marks import marked
from onespike.deploy.exports.thresholds import level_thresholds
from onespike.deploy.exports.tracing import trace
from onespike.errors import UsageError

SHAPES = ("aten.flatten.using_ints", "aten.view.default", "aten.reshape.default")
PRODUCTS = {
    "spikes.linear": True,
    "spikes.conv": True,
    "aten.linear.default": False,
    "aten.conv2d.default": False,
}


PLAIN = "Convert with preset='sformer' and io='spiking', or try format='integers'."
"""The remedy for what the passes have made."""


def refuse(reason: str, remedy: str = "Try format='integers'.") -> UsageError:
    """Return the error for what NIR cannot hold, with the format that can."""
    return UsageError(f"export: nir holds chains of products and ReLUs alone: {reason}. {remedy}")


@dataclass
class Chain:
    """What has been written so far, and the product that waits for its neuron."""

    nodes: dict[str, Any] = field(default_factory=dict)
    last: str = "input"
    edges: list[tuple[str, str]] = field(default_factory=list)
    steps: list[tuple[str, float]] | None = None
    """(sign of the copies, Δy) of the neurons before, copy by copy; None for a real value."""
    waiting: fx.Node | None = None
    after: list[fx.Node] = field(default_factory=list)
    """Pools and changes of shape between the waiting product and its neuron."""
    fires: dict[str, tuple[str, list[tuple[str, float]]]] = field(default_factory=dict)
    """Site → the node whose spikes are its counts, and their values."""

    def add(self, name: str, node: Any) -> None:
        """Add one node after the last."""
        self.nodes[name] = node
        self.edges.append((self.last, name))
        self.last = name


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

    batch = example(request.batches)
    if not isinstance(batch, Tensor):
        raise refuse("this network takes more than one tensor")
    network = marked(request.snn, batch, integers=True)
    program, _ = trace(network, batch)
    chain = _chain(program, tuple(batch.shape[1:]))
    graph = nir.NIRGraph(nodes=chain.nodes, edges=chain.edges)
    nir.write(held := io.BytesIO(), graph)
    file.write_bytes(held.getbuffer())  # HDF5 cannot close a file on a full disk
    fires = {site: chain.fires[site] for site in network.sites}
    norse = __import__("norse")
    return Foreign(f"norse {norse.__version__}", Simulated(nir.read(file), fires))


def _chain(program: Any, shape: tuple[int, ...]) -> Chain:
    import nir

    signature = program.graph_signature
    stored, held = {**program.state_dict, **program.constants}, dict(signature.inputs_to_parameters)
    held |= signature.inputs_to_buffers
    tensors = {put: stored[name].detach() for put, name in held.items()}
    chain = Chain({"input": nir.Input(input_type={"input": _array(shape)})})
    rectified = False
    before = next(n for n in program.graph.nodes if n.op == "placeholder" and n.name not in held)
    for node in program.graph.nodes:
        op = _name(node)
        if node.op != "call_function" or op in LEFT_OUT or op in ("aten.sym_size.int", "mul"):
            continue
        if node.args[0] is not before:
            raise refuse(f"{_where(node)} has a branch ({op})")
        before = node
        if op in SAME or op.startswith("aten.to."):
            continue
        if op in PRODUCTS:
            _check_product(node, op, chain)
            chain.waiting, rectified = node, False
        elif op in ("aten.relu.default", "aten.relu_.default") and chain.waiting is not None:
            rectified = True  # its neuron fires on positive inputs alone
        elif op in (*SHAPES, "aten.max_pool2d.default"):
            chain.after.append(node)
        elif op == "spikes.fire":
            _fire(node, chain, tensors)
        else:
            raise refuse(f"{op} stands before {_where(node)}")
    if chain.waiting is None or chain.after or rectified:
        raise refuse("the network does not end with a product")
    _product(chain, tensors, "output_layer", None)
    size = chain.waiting.meta["val"].shape[1:]
    chain.add("output", nir.Output(output_type={"output": _array(size)}))
    return chain


def _where(node: fx.Node) -> str:
    """Return the site that a node leads to, or the end."""
    seen = [node]
    while seen:
        at = seen.pop(0)
        if _name(at) == "spikes.fire":
            return str(at.args[-1])
        seen += list(at.users)
    return "the output"


def _check_product(node: fx.Node, op: str, chain: Chain) -> None:
    analog = not PRODUCTS[op]
    if analog and (chain.waiting is not None or chain.steps is not None):
        raise UsageError(
            f"export: nir has no ReLU, and the input of the product before {_where(node)} stays analog. "
            "Convert with io='spiking'."
        )
    if len(node.meta["val"].shape) != (4 if "conv" in op else 2):
        raise refuse(f"the product before {_where(node)} is neither of vectors nor of images")
    if "conv" in op and node.args[
        9 if op == "spikes.conv" else 6 : (10 if op == "spikes.conv" else 7)
    ] not in ((1,), ()):
        raise refuse(f"the convolution before {_where(node)} has groups")


def _array(values: Any) -> Any:
    import numpy as np

    return np.asarray([int(v) for v in values])


def _weights(chain: Chain, node: fx.Node, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return (weight with one block of inputs per copy of the neurons before, bias, scale) of a product."""
    args: Any = node.args
    weight = tensors[args[1].name].double()
    if not PRODUCTS[_name(node)]:
        bias = tensors[args[2].name].double() if len(args) > 2 and args[2] is not None else None
        return weight, bias, torch.ones(len(weight)).double()
    scale, bias, up, down = (None if a is None else tensors[a.name].double() for a in args[2:6])
    if bias is not None and bias.dim() > 1:
        raise refuse(f"the bias before {_where(node)} differs by place")
    shape = (1, -1, *[1] * (weight.dim() - 2))
    blocks = []
    for sign, step in chain.steps or []:
        times = up if sign == "+" else down
        block = weight * (step if sign == "+" else -step)
        blocks.append(block if times is None else block * times.view(shape))
    return torch.cat(blocks, 1), bias, scale  # type: ignore[return-value]


def _product(chain: Chain, tensors: dict[str, Tensor], name: str, rows: Any) -> None:
    """Write the waiting product; `rows` makes of (weight, bias, scale) those of its copies, or its value if None."""
    import nir

    node: Any = chain.waiting
    weight, bias, scale = _weights(chain, node, tensors)
    bias = torch.zeros(len(weight)).double() if bias is None else bias
    if rows is None:
        weight, bias = weight * scale.view(-1, *[1] * (weight.dim() - 1)), bias
    else:
        weight, bias = rows(weight, bias, scale)
    kernel, added = weight.float().numpy(), bias.float().numpy()
    if weight.dim() == 2:
        chain.add(name, nir.Affine(weight=kernel, bias=added))
        return
    stride, padding, dilation = node.args[6:9] if PRODUCTS[_name(node)] else _plain(node)
    size = tuple(int(n) for n in node.args[0].meta["val"].shape[2:])
    chain.add(name, nir.Conv2d(size, kernel, tuple(stride), tuple(padding), tuple(dilation), 1, added))


def _plain(node: fx.Node) -> tuple[Any, Any, Any]:
    """Return stride, padding and dilation of torch's convolution."""
    args: Any = [*node.args[3:6], *([1, 1], [0, 0], [1, 1])[len(node.args[3:6]) :]]
    return tuple((list(a) * 2)[:2] for a in args)  # type: ignore[return-value]


def _fire(node: fx.Node, chain: Chain, tensors: dict[str, Tensor]) -> None:
    """Write a neuron: the waiting product with one row per level, one IF of threshold 1, and what follows it."""
    import nir
    import numpy as np

    given: Any = node.args
    _, positive, negative, center, gain, sides, levels, bounds, site = given
    if center is not None or gain is not None:
        raise refuse(f"{site} has a center or gains", PLAIN)
    steps = [tensors[side.name].double() for side in (positive, negative)]
    signs = {"positive": "+", "negative": "-"}.get(str(sides), "+-")
    if any(step.numel() > 1 for step in steps):
        raise refuse(f"{site} has a step for each channel")
    differences = np.diff([0, *levels]).tolist()
    copies = [(sign, float(d)) for sign in signs for d in differences]
    jumps = torch.tensor(bounds, dtype=torch.float64) - 0.5
    thresholds = torch.cat(
        [jumps * steps[0 if sign == "+" else 1] * (1 if sign == "+" else -1) for sign in signs]
    )
    name = f"fire{len(chain.fires)}"
    product: Any = chain.waiting
    shape = tuple(given[0].meta["val"].shape[1:])
    if product is None:  # the network's own input
        if chain.steps is not None or len(shape) not in (1, 3):
            raise refuse(f"{site} codes an input of {len(shape)} dimensions")
        weight = torch.cat([torch.eye(shape[0], dtype=torch.float64) / t for t in thresholds])
        bias = np.zeros(len(weight), np.float32)
        kernel = weight.float().numpy()
        size = tuple(int(n) for n in shape[1:])
        one = (1, 1)
        chain.add(
            f"{name}_levels",
            nir.Affine(kernel, bias)
            if len(shape) == 1
            else nir.Conv2d(size, kernel[..., None, None], one, (0, 0), one, 1, bias),
        )
        before = shape
    else:
        if signs != "+":
            raise refuse(f"{site} fires on negative inputs, which no ReLU leaves")
        chain_rows = _rows(PRODUCTS[_name(product)], thresholds, steps[0], bounds)
        _product(chain, tensors, f"{name}_levels", chain_rows)
        before = tuple(product.meta["val"].shape[1:])
    size = (len(copies) * before[0], *before[1:])
    chain.add(name, _neurons(size, 1.0))
    for index, other in enumerate(chain.after):
        size = _after(chain, other, f"{name}_{index}", size, len(copies))
    chain.fires[str(site)] = (chain.last, copies)
    chain.steps, chain.waiting, chain.after = copies, None, []


def _rows(integers: bool, thresholds: Tensor, step: Tensor, bounds: Any) -> Any:
    def rows(weight: Tensor, bias: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        if not integers:
            return torch.cat([weight / t for t in thresholds]), torch.cat([bias / t for t in thresholds])
        first = level_thresholds(scale, bias, step, bounds).double()  # [outputs, levels]
        return torch.cat([weight] * first.shape[1]), (1.5 - first).t().flatten()

    return rows


def _neurons(size: tuple[int, ...], threshold: float) -> Any:
    import nir
    import numpy as np

    shape = tuple(int(n) for n in size)
    return nir.IF(
        r=np.ones(shape, np.float32),
        v_threshold=np.full(shape, threshold, np.float32),
        v_reset=np.zeros(shape, np.float32),
    )


def _after(chain: Chain, node: fx.Node, name: str, size: tuple[int, ...], copies: int) -> tuple[int, ...]:
    """Write a max-pool of the levels' spikes, or a change of shape."""
    import nir

    if _name(node) in SHAPES:
        wanted = node.meta["val"].shape[1:]
        if len(wanted) != 1:
            raise refuse(f"the shape changes before {_where(node)}")
        chain.add(f"{name}_flat", nir.Flatten(input_type={"input": _array(size)}, start_dim=0))
        return (copies * int(wanted[0]),)
    given: Any = node.args
    kernel, stride, *rest = (*given[1:], None)[:2] + given[3:]
    if any(tuple(part) != tuple(neutral) for part, neutral in zip(rest, ((0, 0), (1, 1)), strict=False)):
        raise refuse(f"the max-pool before {_where(node)} has a padding or a dilation")
    chain.add(f"{name}_pool", nir.SumPool2d(_array(kernel), _array(stride or kernel), _array((0, 0))))
    pooled = (size[0], *(int(n) for n in node.meta["val"].shape[2:]))
    chain.add(f"{name}_any", _neurons(pooled, 0.5))
    return pooled


class Simulated:
    """A NIR graph in Norse, one input at a time, for one step of length 1."""

    def __init__(self, graph: Any, fires: dict[str, tuple[str, list[tuple[str, float]]]]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import norse.torch

            self.network = norse.torch.from_nir(graph, dt=1)
        self.fires = fires
        self.seen: dict[str, Tensor] = {}
        modules = dict(self.network.named_modules())
        for name, _ in fires.values():
            modules[name].register_forward_hook(self._keep(name))

    def _keep(self, name: str) -> Any:
        def hook(_: Any, __: Any, output: Any) -> None:
            self.seen[name] = output[0] if isinstance(output, tuple) else output

        return hook

    def __call__(self, batch: Tensor) -> Answer:
        outputs, counts = [], {site: list[Tensor]() for site in self.fires}
        with torch.no_grad():
            for one in batch:
                output = self.network(one)
                outputs.append(output[0] if isinstance(output, tuple) else output)
                for site, (name, copies) in self.fires.items():
                    levels = self.seen[name].chunk(len(copies))
                    signed = [
                        z * (d if sign == "+" else -d) for z, (sign, d) in zip(levels, copies, strict=True)
                    ]
                    counts[site].append(torch.stack(signed).sum(0))
        return Answer([torch.stack(outputs)], [(site, torch.stack(of)) for site, of in counts.items()])
