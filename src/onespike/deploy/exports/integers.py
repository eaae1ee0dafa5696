"""`integers`: a network as 8-bit weights, spikes and a readable graph; the source for chips.

A folder with `network.json` (nodes in running order, what is at every site, and checksums; its schema is beside it),
`network.safetensors` (every tensor that they name) and `golden.safetensors` (inputs, outputs, and the
spikes of every site as events). Products with weights are exact sums of integers. Everything between them is
evaluated in float64, so that every runtime with double precision decides each spike the same way.
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
from onespike.deploy.exports.comparison import Answer, tensors
from onespike.deploy.exports.graph import Graph, Marked, arguments, kind_of, marked, operation_of, trace
from onespike.deploy.exports.thresholds import integer_thresholds
from onespike.errors import LoadError, UsageError
from onespike.runtime.atomic import damage, digests
from onespike.runtime.validated import read_version, sealed, understood

VERSION = 2
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
        thresholds: smallest sums of the product `of` that fire each level, [outputs, levels], its bias folded in, where
            nothing but ReLU and max-pooling stands between.
        below: likewise the largest sums that fire each negative level.
        of: that product.
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
    below: str | None
    of: str | None
    shape: list[int]


@dataclass(frozen=True)
class NetworkRecord:
    """The whole of `network.json`.

    Attributes:
        files: the SHA-256 of every other file.
        sha256: of this record without it, as JSON with sorted keys.
    """

    format: str
    version: int
    inputs: list[str]
    outputs: dict[str, str]
    sites: dict[str, SiteRecord]
    nodes: list[NodeRecord]
    facts: dict[str, Any]
    files: dict[str, str]
    sha256: str


PLACES = ("device", "layout", "pin_memory", "memory_format")
"""Arguments about memory, which no record needs."""


def read(file: Path) -> Run:
    """Return how a folder runs in float64."""
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
    file.mkdir()
    answer = Replay(record, stored)(batch)
    for site, (_, counts) in zip(record["sites"].values(), answer.counts, strict=True):
        site["shape"] = list(counts.shape)
    save_file({name: value.contiguous().clone() for name, value in stored.items()}, file / TENSORS)
    save_file(_golden(record, batch, answer), file / GOLDEN)
    (file / SCHEMA).write_text(json.dumps(schema(), indent=1) + "\n", encoding="utf-8")
    (file / RECORD).write_text(sealed({**record, "files": digests(file)}), encoding="utf-8")
    return Foreign("float64 between exact integers", Replay.read(file), graph.notes)


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
    tensors, nodes = graph.tensors, graph.calls
    fires = {arguments(node)["site"]: node for node in nodes if operation_of(node) == "spikes.fire"}
    if len(fires) < len(network.sites):
        twice = next(s for s in network.sites if network.sites.count(s) > 1)
        raise UsageError(
            f"export: {twice} fires more than once in a forward, which integers cannot hold. Try format='onnx'."
        )
    sites = {name: _site(fires[name], graph, tensors) for name in network.sites}
    record = {
        "format": "onespike-integers",
        "version": VERSION,
        "inputs": [node.name for node in graph.inputs],
        "outputs": dict(zip(network.outputs, map(graph.name, graph.results), strict=False)),
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


def _site(node: fx.Node, graph: Graph, tensors: dict[str, Tensor]) -> dict[str, Any]:
    neuron, typical = arguments(node), None
    decode = next((arguments(user) for user in node.users if operation_of(user) == "spikes.decode"), neuron)
    gain = neuron["gain"]
    if isinstance(gain, fx.Node) and operation_of(gain) == "spikes.row_gain":
        typical, gain = arguments(gain)["typical"], arguments(gain)["gain"]
    sums = integer_thresholds(node, graph)
    decides = {"thresholds": sums and sums.above, "below": sums and sums.below}
    tensors |= {f"{side}.{neuron['site']}": value for side, value in decides.items() if value is not None}

    def tensor(of: Any) -> str | None:
        return None if of is None else graph.name(of)

    return {
        "fires": node.name, "sides": neuron["sides"], "levels": list(neuron["levels"]), "bounds": list(neuron["bounds"]),
        "steps": [tensor(neuron["positive"]), tensor(neuron["negative"])],
        "units": [tensor(decode["positive"]), tensor(decode["negative"])],
        "center": tensor(neuron["center"]), "gain": tensor(gain), "offset": tensor(decode.get("offset")),
        "typical": tensor(typical), **{side: None if value is None else f"{side}.{neuron['site']}" for side, value in decides.items()},
        "of": sums and sums.product, "shape": [],
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


class Replay:
    """The record run by torch, in float64 between products: what defines the golden spikes."""

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

    def _answer(self, batch: Any) -> Answer:
        values: dict[str, Any] = dict(self.tensors)
        for name, leaf in zip(self.record["inputs"], tensors(batch), strict=True):
            values[name] = leaf.double() if leaf.is_floating_point() else leaf
        for node in self.record["nodes"]:
            kwargs = {name: _read(argument, values) for name, argument in node["kwargs"].items()}
            values[node["name"]] = _function(node["op"])(*_read(node["args"], values), **kwargs)
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
