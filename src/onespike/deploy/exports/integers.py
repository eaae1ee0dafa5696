"""`integers`: a network as 8-bit weights, spikes and a readable graph; the source for chips.

A folder with `network.json` (nodes in running order, what is at every site, and checksums; its schema is beside it),
`network.safetensors` (every tensor that they name) and `golden.safetensors` (inputs, outputs, and the
spikes of every site as events). Products with weights are exact sums of integers, which thresholds turn into spikes. What
else is between them is in fixed point: every result is rounded to a multiple of 2^−fraction.
"""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from onespike.deploy.exports.base import Foreign, Request, Run, example, export_format
from onespike.deploy.exports.comparators import FRACTION, Comparator
from onespike.deploy.exports.comparison import Answer, tensors
from onespike.deploy.exports.folded_graph import fold_
from onespike.deploy.exports.graph import Graph, Marked, arguments, kind_of, marked, operation_of, trace
from onespike.deploy.exports.sheet import written
from onespike.errors import LoadError, UsageError
from onespike.runtime.atomic import damage, digests
from onespike.runtime.batches import count
from onespike.runtime.validated import read_version, sealed, understood

VERSION = 3
REMEDY = "Export it again."
RECORD, TENSORS, GOLDEN, SCHEMA = "network.json", "network.safetensors", "golden.safetensors", "schema.json"
VALUE = "value"
"""An argument {"value": NAME} is the result of a node, an input or a tensor of that name."""


@dataclass(frozen=True)
class NodeRecord:
    """One operation: `spikes.…` as the documentation defines it, `aten.…` as torch does, or one of Python's."""

    name: str
    op: str
    args: list[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SiteRecord:
    """What is at a site. Names are those of tensors; null is nothing.

    Attributes:
        fires: the node whose result is its counts.
        sides: which signs fire: `even`, `both`, `positive` or `negative`.
        levels: the magnitudes that it may send.
        bounds: where they begin, in |x − center| / (gain·step) + ½.
        steps: of the positive and the negative side.
        units: what one spike is worth; 0 where a channel is off.
        gain: powers of two by which the steps of a row are larger, by its position.
        typical: the mean |x − center| of a usual row, where `spikes.row_gain` multiplies the gain of each row.
        thresholds: ascending integers [.., cuts] for the shape of the site, with all functions before it folded in; null
            where `fires` scales and rounds.
        values: the counts between thresholds: values[number of thresholds ≤ integer].
        sign: −1 where the integer is negated first.
        fraction: the bits behind the point of these integers; 0 for sums of a product.
        shape: of the counts on the golden inputs.
    """

    fires: str
    sides: str
    levels: list[int]
    bounds: list[float]
    steps: list[str]
    units: list[str]
    center: str | None
    gain: str | None
    offset: str | None
    typical: str | None
    thresholds: str | None
    values: list[int]
    sign: str | None
    fraction: int
    shape: list[int]


@dataclass(frozen=True)
class NetworkRecord:
    """The whole of `network.json`.

    Attributes:
        fraction: results that are not integers are rounded to multiples of 2^−fraction.
        files: the SHA-256 of every other file.
        sha256: of this record without it, as JSON with sorted keys.
    """

    format: str
    version: int
    inputs: list[str]
    outputs: dict[str, str]
    fraction: int
    sites: dict[str, SiteRecord]
    nodes: list[NodeRecord]
    facts: dict[str, Any]
    files: dict[str, str]
    sha256: str


PLACES = ("device", "layout", "pin_memory", "memory_format")
"""Arguments about memory, which no record needs."""


def read(file: Path) -> Run:
    """Return how a folder runs in fixed point."""
    replay = Replay.read(file)
    return lambda batch: replay(batch).outputs


@export_format(
    "integers", read=read, suffix="", needs=("safetensors", "pydantic"), extra="cli", forms=(True,)
)
def write(request: Request, file: Path) -> Foreign:
    """Write a folder for chips: 8-bit weights, integer thresholds, the graph, and golden spikes as events."""
    from safetensors.torch import save_file

    batch = example(request.batches)
    network = marked(request.network, batch)
    graph = trace(network, batch, pure=True)
    record, stored = _described(graph, network, dict(request.facts))
    floats = [operation.layer for operation in written(graph, count(batch)).rows() if operation.floats]
    if request.strict and floats:
        raise UsageError(
            f"export: the products of {', '.join(floats)} are left in floats. Convert with io='int8', or leave integer= out."
        )
    file.mkdir()
    answer = Replay(record, stored)(batch)
    for site, (_, counts) in zip(record["sites"].values(), answer.counts, strict=True):
        site["shape"] = list(counts.shape)
    save_file({name: value.contiguous().clone() for name, value in stored.items()}, file / TENSORS)
    save_file(_golden(record, batch, answer), file / GOLDEN)
    (file / SCHEMA).write_text(json.dumps(schema(), indent=1) + "\n", encoding="utf-8")
    (file / RECORD).write_text(sealed({**record, "files": digests(file)}), encoding="utf-8")
    return Foreign(
        f"fixed point with {FRACTION} bits behind the point between exact integers",
        Replay.read(file),
        graph.notes,
    )


def schema() -> dict[str, Any]:
    """Return the JSON schema of `network.json`."""
    from pydantic import TypeAdapter

    return TypeAdapter(NetworkRecord).json_schema()


def _golden(record: dict[str, Any], batch: Any, answer: Answer) -> dict[str, Tensor]:
    """Return inputs, outputs and events: flat places of neurons in their site's tensor, and signed counts."""
    golden = {f"input.{n}": v.clone() for n, v in zip(record["inputs"], tensors(batch), strict=True)}
    golden |= {f"output.{n}": v.contiguous() for n, v in zip(record["outputs"], answer.outputs, strict=True)}
    for name, counts in answer.counts:
        flat = counts.flatten()
        places = flat.nonzero().flatten()
        kind = torch.int32 if flat.abs().max() > 2**15 - 1 else torch.int16
        golden |= {f"neurons.{name}": places.int(), f"counts.{name}": flat[places].to(kind)}
    return golden


def _described(
    graph: Graph, network: Marked, facts: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the record of a graph, and the tensors that it names."""
    fires = {arguments(node)["site"]: node for node in graph.calls if operation_of(node) == "spikes.fire"}
    if len(fires) < len(network.sites):
        twice = next(s for s in network.sites if network.sites.count(s) > 1)
        raise UsageError(
            f"export: {twice} fires more than once in a forward, which integers cannot hold. Try format='onnx'."
        )
    tensors = dict[str, Tensor]()
    codes = {name: _code(fires[name], graph, tensors) for name in network.sites}
    compared = fold_(graph)
    tensors |= graph.tensors
    nodes = graph.calls
    sites = {name: code | _decided(name, nodes, compared.get(name)) for name, code in codes.items()}
    record = {
        "format": "onespike-integers",
        "version": VERSION,
        "inputs": [node.name for node in graph.inputs],
        "outputs": dict(zip(network.outputs, map(graph.name, graph.results), strict=False)),
        "fraction": FRACTION,
        "sites": sites,
        "nodes": [_node(node, graph) for node in nodes],
        "facts": facts,
    }
    return record, tensors


def _node(node: fx.Node, graph: Graph) -> dict[str, Any]:
    op, args = operation_of(node), [_argument(a, graph) for a in node.args]
    kwargs = {name: _argument(a, graph) for name, a in node.kwargs.items() if name not in PLACES}
    if op.startswith("aten.to."):
        op, args, kwargs = "aten.to.dtype", [args[0], kind_of(node)], {}
    return {"name": node.name, "op": op, "args": args, "kwargs": kwargs}


def _code(node: fx.Node, graph: Graph, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return what a neuron sends and what that is worth, by the names of its tensors."""
    neuron, typical = arguments(node), None
    decode = next((arguments(user) for user in node.users if operation_of(user) == "spikes.decode"), neuron)
    gain = neuron["gain"]
    if isinstance(gain, fx.Node) and operation_of(gain) == "spikes.row_gain":
        typical, gain = arguments(gain)["typical"], arguments(gain)["gain"]

    def tensor(of: Any) -> str | None:
        held = graph.tensor(of)
        if held is None:
            return None
        tensors[graph.name(of)] = held
        return graph.name(of)

    return {
        "sides": neuron["sides"], "levels": list(neuron["levels"]), "bounds": list(neuron["bounds"]),
        "steps": [tensor(neuron["positive"]), tensor(neuron["negative"])],
        "units": [tensor(decode["positive"]), tensor(decode["negative"])],
        "center": tensor(neuron["center"]), "gain": tensor(gain), "offset": tensor(decode.get("offset")),
        "typical": tensor(typical), "shape": [],
    }  # fmt: skip


def _decided(site: str, nodes: list[fx.Node], by: Comparator | None) -> dict[str, Any]:
    """Return how a site fires: by comparisons, or scaled and rounded."""
    kinds = ("spikes.fire", "spikes.compare")
    fires = next(n.name for n in nodes if operation_of(n) in kinds and arguments(n)["site"] == site)
    if by is None:
        return {"fires": fires, "thresholds": None, "values": [], "sign": None, "fraction": FRACTION}
    sign = None if by.sign is None else f"sign.{site}"
    return {
        "fires": fires, "thresholds": f"thresholds.{site}", "values": by.values, "sign": sign, "fraction": by.fraction,
    }  # fmt: skip


def _argument(value: Any, graph: Graph) -> Any:
    if isinstance(value, fx.Node):
        return {VALUE: graph.name(value)}
    if isinstance(value, (list, tuple)):
        return [_argument(v, graph) for v in value]
    if isinstance(value, torch.dtype):
        return kind_of(value)
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return {"number": "inf" if value > 0 else "-inf"}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UsageError(f"export: integers cannot hold the argument {value!r} of type {type(value).__name__}.")


PYTHON = {
    name: getattr(operator, name) for name in ("getitem", "mul", "add", "sub", "floordiv", "mod", "neg")
}
TYPES = {"float": torch.float64, "int": torch.int64, "bool": torch.bool}


EXACT = tuple(
    f"spikes.{name}" for name in ("fire", "compare", "decode", "linear_sums", "conv_sums", "row_gain")
)


class Replay:
    """The record run by torch, in fixed point between products: what defines the golden spikes."""

    def __init__(
        self, record: dict[str, Any], tensors: dict[str, Tensor], place: Path | str = RECORD
    ) -> None:
        self.record, self.place = record, place
        self.tensors = {n: t.double() if t.dtype == torch.float32 else t for n, t in tensors.items()}

    @staticmethod
    def read(folder: Path) -> Replay:
        """Read a folder that `write` wrote; any damage raises an error that names it."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if not (folder / RECORD).is_file():
            raise LoadError(f"{folder}: no exported network here ({RECORD} is missing). {REMEDY}")
        record = read_version(NetworkRecord, folder / RECORD, VERSION, "the exported network", REMEDY)
        for name, digest in record["files"].items():
            if difference := damage(folder / name, digest):
                raise LoadError(f"{folder}: the exported network is damaged: {name} {difference}. {REMEDY}")
        try:
            return Replay(record, load_file(folder / TENSORS), folder / RECORD)
        except SafetensorError as error:
            raise LoadError(f"{folder / TENSORS}: the file cannot be read ({error}). {REMEDY}") from error

    @torch.no_grad()
    def __call__(self, batch: Any) -> Answer:
        with understood(self.place, REMEDY):
            return self._answer(batch)

    def _on_grid(self, op: str, value: Any) -> Any:
        """Return a result in fixed point; what spikes are worth is exact, since products of spikes are."""
        if op in EXACT or not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return (value * 2.0 ** self.record["fraction"]).round() / 2.0 ** self.record["fraction"]

    def _answer(self, batch: Any) -> Answer:
        values: dict[str, Any] = dict(self.tensors)
        for name, leaf in zip(self.record["inputs"], tensors(batch), strict=True):
            values[name] = leaf.double() if leaf.is_floating_point() else leaf
        for node in self.record["nodes"]:
            kwargs = {name: _read(argument, values) for name, argument in node["kwargs"].items()}
            result = _function(node["op"])(*_read(node["args"], values), **kwargs)
            values[node["name"]] = self._on_grid(node["op"], result)
        outputs = [values[name] for name in self.record["outputs"].values()]
        counts = [(name, values[site["fires"]]) for name, site in self.record["sites"].items()]
        return Answer([o.float() if o.is_floating_point() else o for o in outputs], counts)


def _read(value: Any, values: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return values[value[VALUE]] if VALUE in value else float(value["number"])
    if isinstance(value, list):
        return [_read(v, values) for v in value]
    return TYPES.get(value, value) if isinstance(value, str) else value


def _function(op: str) -> Any:
    """Return an operation by its name: nothing but operators, and none that opens a file."""
    if op in PYTHON:
        return PYTHON[op]
    space, name, *overload = op.split(".")
    packet = getattr(getattr(torch.ops, space), name) if space in ("aten", "spikes") else None
    function = getattr(packet, overload[0] if overload else "default", None)
    if not isinstance(function, torch._ops.OpOverload) or any(
        argument.name == "filename" for argument in function._schema.arguments
    ):
        raise ValueError(f"no operation {op!r}")
    return function
