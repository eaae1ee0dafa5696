"""`qonnx`: ONNX in which every neuron is a `MultiThreshold`, as FINN reads it; checked with qonnx's own executor.

Written from the graph of `integers`: each comparator's integer thresholds decide here, too. Products are MatMul and Conv of
whole numbers, which float32 holds up to 2²⁴, and annotations say how many bits they have. The rest is standard ONNX.
"""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from onespike.deploy.exports.base import Foreign, Request, example, export_format
from onespike.deploy.exports.comparators import MOST, Comparator
from onespike.deploy.exports.comparison import Answer, Run, reference, tensors
from onespike.deploy.exports.folded_graph import fold_
from onespike.deploy.exports.graph import Graph, arguments, graph_of
from onespike.deploy.exports.onnx_file import feeds, input_names, translated
from onespike.errors import UsageError
from onespike.runtime.batches import split, take

DOMAIN, KEY = "qonnx.custom_op.general", "onespike.tensors"
FLOAT, IR_VERSION = 1, 10
LARGEST = 2.0**31 - 2**7
"""No sum is larger, in float32."""
TYPES = {"MatMul": "INT8", "Conv": "INT8", "MultiThreshold": "INT32", "Mul": None}
"""Operation → the type of its second operand where that is whole numbers; None for the smallest."""
LAYOUTS: dict[Any, str] = {(2, 1): "NC", (3, 1): "NCW", (3, 2): "NWC", (4, 1): "NCHW", (4, 3): "NHWC"}
"""(axes, axis of the channels) → the name of a layout."""


def read(file: Path) -> Run:
    """Return how qonnx runs a file, one input at a time; the counts of a site are the tensor of its name."""
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx

    model: Any = ModelWrapper(str(file))
    record = json.loads(model.get_metadata_prop(KEY))
    names = [put.name for put in model.graph.input]

    def run(batch: Any) -> Answer:
        runs = list[dict[str, Any]]()
        for one in split(batch, 1):
            with readable():
                put = feeds(one, names, record["inputs"])
                runs.append(execute_onnx(model, put, return_full_exec_context=True))

        def joined(name: str, axis: int) -> Tensor:
            values = [torch.from_numpy(run[name]) for run in runs]
            return torch.cat(values, axis) if axis >= 0 else values[0]

        outputs = [joined(*place) for place in record["outputs"]]
        return Answer(outputs, [(place[0], joined(*place)) for place in record["sites"]])

    return run


@export_format(
    "qonnx",
    read=read,
    suffix=".onnx",
    needs=("onnxscript", "onnxruntime", "qonnx"),
    extra="qonnx",
    forms=(True,),
)
def write(request: Request, file: Path) -> Foreign:
    """ONNX with MultiThresholds for neurons and integers of few bits, for FPGAs; one input at a time."""
    from importlib.metadata import version

    batch = example(request.batches)
    first = take(batch, slice(0, 1))
    graph = graph_of(request.network, first, fixed=True)
    graph.check_once("qonnx")
    several, single = (tensors(reference(request.network, inputs)[1]) for inputs in (batch, first))
    axes = [_axis(before, after) for before, after in zip(several, single, strict=True)]
    translations = {
        torch.ops.spikes.sums.default: sums,
        torch.ops.spikes.pairs.default: pairs,
        torch.ops.spikes.compare.default: neurons(folded(graph)),
    }
    written = translated(graph, [*graph.outputs, *graph.sites], request.facts, translations)
    cleaned(written, graph, axes).save(str(file))
    shapes = ", ".join(str(tuple(leaf.shape)) for leaf in tensors(first))
    return Foreign(f"qonnx {version('qonnx')}", notes=(f"it takes one input at a time, of shape {shapes}",))


def _axis(several: Tensor, single: Tensor) -> int:
    """Return the axis along which there are more numbers for more inputs; −1 for none."""
    return next((axis for axis, size in enumerate(single.shape) if size != several.shape[axis]), -1)


def folded(graph: Graph) -> dict[str, Comparator]:
    """Put comparators in place of all neurons."""
    compared = fold_(graph, whole=True)
    if rest := graph.calls_of("spikes.fire"):
        named = arguments(rest[0])
        reason = "a function that falls is before its max-pool. Pool first"
        if (levels := len(named["levels"])) > MOST // 2:
            reason = f"it has {levels} levels. Convert with fewer and without the pass layout"
        raise UsageError(
            f"export: qonnx has no thresholds for {named['site']}: {reason}, or try format='onnx'."
        )
    graph.program.graph_module.recompile()
    return compared


def sums(
    units: Any, weight: Any, stride: Sequence[int] = (), padding: Sequence[int] = (), dilation: Sequence[int] = (),
    groups: int = 1, most: int = 0, signed: bool = True,
) -> Any:  # fmt: skip
    """`operations.sums` of whole numbers in float32."""
    from onespike.deploy.exports.onnx_nodes import op

    whole = op.Cast(weight, to=FLOAT)
    if not stride:
        return op.MatMul(units, op.Transpose(whole, perm=[1, 0]))
    geometry = {"strides": [*stride], "dilations": [*dilation], "pads": [*padding, *padding]}
    return op.Conv(units, whole, group=groups, kernel_shape=list(weight.shape)[2:], **geometry)


def pairs(
    lhs: Any, rhs: Any, lhs_most: int = 0, rhs_most: int = 0, lhs_signed: bool = True, rhs_signed: bool = True
) -> Any:
    """`operations.pairs` of whole numbers in float32."""
    from onespike.deploy.exports.onnx_nodes import op

    return op.MatMul(lhs, rhs)


def neurons(compared: dict[str, Comparator]) -> Any:
    """Return how `operations.compare` is written: MultiThresholds that count up, less those where the count falls."""
    from onnx.defs import OpSchema
    from onnxscript import values

    from onespike.deploy.exports.onnx_nodes import constant, op

    kinds = {"out_dtype": "STRING", "out_bias": "FLOAT", "out_scale": "FLOAT", "data_layout": "STRING"}
    schema = OpSchema(
        "MultiThreshold", DOMAIN, 1, type_constraints=[("T", ["tensor(float)"], "")],
        inputs=[OpSchema.FormalParameter(name, "T") for name in ("x", "thresholds")],
        outputs=[OpSchema.FormalParameter("counts", "T")],
        attributes=[OpSchema.Attribute(name, getattr(OpSchema.AttrType, kind), "") for name, kind in kinds.items()],
    )  # fmt: skip
    multi_threshold = values.Op(values.Opset(DOMAIN, 1), "MultiThreshold", schema)

    def counted(x: Any, rows: Tensor, columns: list[int], bias: int, layout: str) -> Any:
        cuts = rows[:, columns] if columns else torch.full((1, 1), LARGEST)
        facts = (type_of(bias, bias + cuts.shape[1]), float(bias), 1.0, layout)
        return multi_threshold(x, constant(cuts.contiguous()), **dict(zip(kinds, facts, strict=True)))

    def compare(x: Any, thresholds: Any, rows: Any, sign: Any, values: Any, fraction: int, site: str) -> Any:
        decided, shape = compared[site], [int(size) for size in x.shape]
        x = x if decided.sign is None else op.Mul(x, constant(decided.sign))
        cuts = _upwards(decided.thresholds.double() / 2.0**decided.fraction)
        usual = 2 if len(shape) == 3 else 1
        axes = [axis for axis in range(1, len(shape)) if cuts.shape[axis] > 1] or [usual]
        order = [0, *axes, *(axis for axis in range(1, len(shape)) if axis not in axes)]
        layout = LAYOUTS.get((len(shape), *axes))
        if layout is None:  # all axes along which thresholds differ become the channels
            channels = prod(shape[axis] for axis in axes)
            x = op.Reshape(op.Transpose(x, perm=order), constant(torch.tensor([shape[0], channels, -1])))
        table = cuts.permute(*order, -1).flatten(0, -2)
        steps = [after - before for before, after in pairwise(decided.values)]
        up, down = ([n for n, step in enumerate(steps) for _ in range(sign * step)] for sign in (1, -1))
        result = counted(x, table, up, decided.values[0], layout or "NCW")
        if down:
            result = op.Sub(result, counted(x, table, down, 0, layout or "NCW"))
        if layout is None:
            result = op.Reshape(result, constant(torch.tensor([shape[axis] for axis in order])))
            result = op.Transpose(result, perm=[order.index(axis) for axis in range(len(order))])
        return result

    return compare


def _upwards(values: Tensor) -> Tensor:
    """Return the smallest float32 that is not below: what a float32 is compared with, it compares alike."""
    values = values.clamp(-LARGEST, LARGEST)
    near = values.float()
    return torch.where(near.double() < values, near.nextafter(torch.tensor(torch.inf)), near)


def type_of(low: int, high: int) -> str:
    """Return the smallest type of integers that holds a range.

    >>> type_of(0, 263), type_of(-8, 7), type_of(-263, 0)
    ('UINT9', 'INT4', 'INT10')
    """
    if low >= 0:
        return f"UINT{max(1, high.bit_length())}"
    return f"INT{1 + max((-low - 1).bit_length(), high.bit_length())}"


def cleaned(written: Any, graph: Graph, axes: list[int]) -> Any:
    """Return a model with readable names, folded constants, shapes and types; counts are no outputs, but have names."""
    from qonnx.core.datatype import DataType
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.transformation.infer_datatypes import InferDataTypes
    from qonnx.util.cleanup import cleanup_model

    proto = written.model_proto
    with readable():
        model: Any = cleanup_model(ModelWrapper(proto))
    for fact in proto.metadata_props:  # they are lost on the way
        model.set_metadata_prop(fact.key, fact.value)
    for node in model.graph.node:
        held = model.get_initializer(node.input[1]) if node.op_type in TYPES else None
        if held is not None and (held == held.round()).all():
            kind = TYPES[node.op_type] or type_of(int(held.min()), int(held.max()))
            model.set_tensor_datatype(node.input[1], DataType["BIPOLAR" if (abs(held) == 1).all() else kind])
    model = model.transform(InferDataTypes())
    size = len(graph.outputs)
    counts = list(model.graph.output)[size:]
    del model.graph.output[size:]
    for put, site in zip(counts, graph.sites, strict=True):
        model.graph.value_info.append(put)
        model.rename_tensor(put.name, site)
    places = list(zip([put.name for put in model.graph.output] + graph.sites, axes, strict=True))
    record = {"inputs": input_names(graph), "outputs": places[:size], "sites": places[size:]}
    model.set_metadata_prop(KEY, json.dumps(record))
    return model


def readable() -> AbstractContextManager[Any]:
    """Let qonnx make the models of single nodes, which it runs one by one, for any onnxruntime: not of onnx's newest version."""
    from qonnx.core import onnx_exec

    make = partial(onnx_exec.qonnx_make_model, ir_version=IR_VERSION)
    return patch.object(onnx_exec, "qonnx_make_model", make)
