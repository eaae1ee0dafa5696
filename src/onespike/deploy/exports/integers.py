"""`integers`: a network as 8-bit weights, spikes and a readable graph; the source for chips.

A folder with `network.json` (nodes in running order, what is at every site, and checksums; its schema is beside it),
`network.safetensors` (every tensor that they name) and `golden.safetensors` (inputs, outputs, and the
spikes of every site as events). Products with weights are exact sums of integers, which thresholds turn into spikes. What
else is between them is in fixed point: every result is rounded to a multiple of 2^−fraction.
"""

from __future__ import annotations

import json
import operator
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from onespike.deploy.exports.base import REMEDY, Foreign, Request, example, export_format
from onespike.deploy.exports.comparators import FRACTION
from onespike.deploy.exports.comparison import Answer, Comparison, largest_class, tensors
from onespike.deploy.exports.folded_graph import fold_
from onespike.deploy.exports.graph import Graph, arguments, graph_of, kind_of, operation_of
from onespike.deploy.exports.operations import PRODUCTS
from onespike.deploy.exports.record import FROM_SITE, OPERATIONS, VALUE, NetworkRecord, schema
from onespike.errors import LoadError, UsageError
from onespike.runtime.atomic import damage, digests
from onespike.runtime.batches import join, take_first
from onespike.runtime.validated import read_sealed, sealed, understood

VERSION = 5
RECORD, TENSORS, GOLDEN = "network.json", "network.safetensors", "golden.safetensors"
SCHEMA = "schema.json"
PLACES = ("device", "layout", "pin_memory", "memory_format")
"""Arguments about memory, which no record needs."""


def golden(folder: Path) -> Comparison:
    """Return how a folder's golden spikes and outputs compare with what it computes."""
    replay, comparison = Replay.read(folder), Comparison()
    with understood(folder / GOLDEN, REMEDY):
        stored = _tensors(folder / GOLDEN)
        outputs, counts = [stored[f"output.{name}"] for name in replay.record["outputs"]], []
        for name, site in replay.record["sites"].items():
            dense = torch.zeros(prod(site["shape"]), dtype=torch.float64)
            dense[stored[f"neurons.{name}"].long()] = stored[f"counts.{name}"].double()
            counts.append((name, dense.view(site["shape"])))
        answer = replay(tuple(stored[f"input.{name}"] for name in replay.record["inputs"]))
        comparison.update((outputs, Answer(outputs, counts)), answer, largest_class)
    return comparison


@export_format(
    "integers", read=lambda file: Replay.read(file), suffix="", needs=("safetensors", "pydantic"), extra="cli",
    forms=(True,), scored=False, golden=golden,
)  # fmt: skip
def write(request: Request, file: Path) -> Foreign:
    """Write a folder for chips: 8-bit weights, integer thresholds, the graph, and golden spikes as events."""
    from safetensors.torch import save_file

    batch = example(request.batches)
    graph = graph_of(request.network, batch)
    graph.check_once("integers")
    record, stored = _described(graph, dict(request.facts))
    file.mkdir()
    if request.golden is not None:
        batch = join(take_first(request.batches, request.golden))
    answer = Replay(record, stored)(batch)
    for site, (_, counts) in zip(record["sites"].values(), answer.counts, strict=True):
        site["shape"] = list(counts.shape)
    save_file({name: value.contiguous().clone() for name, value in stored.items()}, file / TENSORS)
    save_file(_golden(record, batch, answer), file / GOLDEN)
    (file / SCHEMA).write_text(json.dumps(schema(), indent=1) + "\n", encoding="utf-8")
    (file / RECORD).write_text(sealed({**record, "files": digests(file)}), encoding="utf-8")
    return Foreign(
        f"fixed point with {FRACTION} bits behind the point between exact integers", notes=graph.notes
    )


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


def _described(graph: Graph, facts: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the record of a graph, and the tensors that it names."""
    fires = {arguments(node)["site"]: node for node in graph.calls_of("spikes.fire")}
    tensors = dict[str, Tensor]()
    codes = {name: _code(fires[name], graph, tensors) for name in graph.sites}
    fold_(graph)
    tensors |= graph.tensors
    decide = {arguments(node)["site"]: node for node in graph.calls_of("spikes.fire", "spikes.compare")}
    sites = {name: code | _decided(decide[name], graph) for name, code in codes.items()}
    record = {
        "format": "onespike-integers",
        "version": VERSION,
        "inputs": [node.name for node in graph.inputs],
        "outputs": dict(zip(graph.outputs, map(graph.name, graph.results), strict=False)),
        "fraction": FRACTION,
        "sites": sites,
        "nodes": [_node(node, graph) for node in graph.calls],
        "facts": facts,
    }
    return record, tensors


def _node(node: fx.Node, graph: Graph) -> dict[str, Any]:
    op, target = operation_of(node), node.target
    if op.startswith("aten.to."):
        op, named = "aten.to.dtype", {"self": node.args[0], "dtype": kind_of(node)}
    elif isinstance(target, torch._ops.OpOverload):
        left_out = {p.name: p.default_value for p in target._schema.arguments if p.has_default_value()}
        left_out |= {name: arguments(node).get(name) for name in (*PLACES, *FROM_SITE.get(op, ()))}
        named = {n: v for n, v in arguments(node).items() if n not in left_out or v != left_out[n]}
    else:
        named = dict(zip("ab", node.args, strict=False))
    args = {name: _argument(value, graph) for name, value in named.items()}
    return {"name": node.name, "op": op, "args": args}


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


def _decided(node: fx.Node, graph: Graph) -> dict[str, Any]:
    """Return how a site fires: by comparisons, or scaled and rounded."""
    named = arguments(node)
    parts = ("thresholds", "rows", "sign")
    return {
        "fires": node.name, **{part: graph.name(named[part]) if named.get(part) else None for part in parts},
        "values": named.get("values", []), "fraction": named.get("fraction", FRACTION),
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


EXACT = {*OPERATIONS} - {*PRODUCTS}
"""Their results are whole numbers, or products of such: they need no rounding."""


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
        if not (folder / RECORD).is_file():
            raise LoadError(f"{folder}: no exported network here ({RECORD} is missing). {REMEDY}")
        record = read_sealed(NetworkRecord, folder / RECORD, REMEDY, version=VERSION) or {}
        for name, digest in record["files"].items():
            if difference := damage(folder / name, digest):
                raise LoadError(f"{folder}: the exported network is damaged: {name} {difference}. {REMEDY}")
        return Replay(record, _tensors(folder / TENSORS), folder / RECORD)

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
            named = {name: _read(argument, values) for name, argument in node["args"].items()}
            for name in FROM_SITE.get(node["op"], ()):
                named[name] = self.record["sites"][named["site"]][name]
            values[node["name"]] = self._on_grid(node["op"], _computed(node["op"], named))
        outputs = [values[name] for name in self.record["outputs"].values()]
        counts = [(name, values[site["fires"]]) for name, site in self.record["sites"].items()]
        return Answer([o.float() if o.is_floating_point() else o for o in outputs], counts)


def _read(value: Any, values: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return values[value[VALUE]] if VALUE in value else float(value["number"])
    if isinstance(value, list):
        return [_read(v, values) for v in value]
    return TYPES.get(value, value) if isinstance(value, str) else value


def _tensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise LoadError(f"{file}: the file cannot be read ({error}). {REMEDY}") from error


def _computed(op: str, named: dict[str, Any]) -> Any:
    """Return the result of an operation by its name: nothing but operators, and none that opens a file."""
    if op in PYTHON:
        return PYTHON[op](*named.values())
    space, name, *overload = op.split(".")
    packet = getattr(getattr(torch.ops, space), name) if space in ("aten", "spikes") else None
    function = getattr(packet, overload[0] if overload else "default", None)
    if not isinstance(function, torch._ops.OpOverload) or any(
        argument.name == "filename" for argument in function._schema.arguments
    ):
        raise ValueError(f"no operation {op!r}")
    return function(**named)
