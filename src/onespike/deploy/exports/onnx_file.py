"""ONNX: standard operators only, checked with onnxruntime.

Nodes are written from the definitions of `operations.py`, but for sums of products, which multiply bytes.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product as product_of
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onespike.deploy.exports.base import Foreign, Request, Run, example, export_format
from onespike.deploy.exports.byte_graph import EIGHT_BITS, SEVEN_BITS, bytes_, zero_of
from onespike.deploy.exports.comparison import Answer, tensors
from onespike.deploy.exports.folded_graph import multiply_
from onespike.deploy.exports.graph import Graph, marked, trace
from onespike.deploy.exports.operations import BEFORE
from onespike.deploy.products import EXACT
from onespike.errors import UsageError

OPSET = 20
BASE = 128
"""The base of counts of several digits."""
INT32 = 6


def read(file: Path) -> Run:
    """Return how onnxruntime runs a file."""
    session = _session(file)
    return lambda batch: _run(session, batch)


@export_format("onnx", read=read, suffix=".onnx", needs=("onnx", "onnxscript", "onnxruntime"), extra="onnx")
def write(request: Request, file: Path) -> Foreign:
    """ONNX, standard operators only; on bytes by MatMulInteger and ConvInteger."""
    import onnxruntime

    if any(parameter.dtype is torch.bfloat16 for parameter in request.network.parameters()):
        raise UsageError(
            "export: onnxruntime does not multiply bfloat16. Use snn.float(), or export with format='pt2'."
        )
    batch = example(request.batches)
    network = marked(request.network, batch)
    graph = trace(network, batch, pure=request.integer)
    if request.integer:
        multiply_(graph)
    bytes_(graph)
    # a site may fire more than once
    counts = [f"{site}#{number}" for number, site in enumerate(network.sites)]
    model = translated(graph, [*network.outputs, *counts], request.facts, TRANSLATIONS)
    probes = file.with_name(f"{file.name}.probes")
    model.save(str(probes))
    size = len(network.outputs)
    del model.model.graph.outputs[size:]
    model.save(str(file))
    session = _session(probes)
    for left in list(file.parent.glob(f"{probes.name}*")):
        left.unlink()

    def probe(batch: Any) -> Answer:
        values = _run(session, batch)
        return Answer(values[:size], list(zip(network.sites, values[size:], strict=True)))

    return Foreign(f"onnxruntime {onnxruntime.__version__}", probe, graph.notes)


def translated(
    graph: Graph, outputs: list[str], facts: Mapping[str, Any], translations: Mapping[Any, Any]
) -> Any:
    """Return a graph as ONNX with some operations written otherwise, without the source lines of each node."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            model: Any = torch.onnx.export(
                graph.program,
                opset_version=OPSET,
                dynamo=True,
                custom_translation_table=dict(translations),
                input_names=input_names(graph),
                output_names=outputs,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        reason = next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), "")
        raise UsageError(
            f"export: torch.onnx has no form for this network ({reason}). Try format='pt2'."
        ) from error
    finally:
        log.setLevel(level)
    for node in model.model.graph.all_nodes():  # they take more bytes than the weights
        node.metadata_props.clear()
    for name, value in facts.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        model.model.metadata_props[f"onespike.{name}"] = text
    return model


def _constant(value: Any) -> Any:
    import numpy as np
    import onnx
    from onnxscript import opset20

    return opset20.Constant(value=onnx.numpy_helper.from_array(np.asarray(value)))


def rounded(x: Any, scale: Any, low: int, high: int, signed: bool, site: str) -> Any:
    """`operations.round`: a quantizer, with a scale along one axis at most."""
    import numpy as np
    from onnxscript import opset20

    op: Any = opset20
    zero: Any = 0 if signed else zero_of(low, high)
    whole: Any = np.int8 if signed else np.uint8
    sizes = [] if scale is None else list(scale.shape)
    size = tuple(extent for extent in sizes if extent > 1)
    axis = len(x.shape) - len(sizes) + sizes.index(*size) if size else 1
    before = _constant(np.float32(BEFORE))
    if scale is None:
        scale = before
    else:
        scale = op.Mul(op.Reshape(scale, _constant(np.array(size, dtype=np.int64))), before)
    count = op.QuantizeLinear(x, scale, _constant(np.full(size, zero, dtype=whole)), axis=axis)
    ends = [low + zero, high + zero]
    if ends != [np.iinfo(whole).min, np.iinfo(whole).max]:
        count = op.Clip(count, *(_constant(whole(end)) for end in ends))
    return op.DequantizeLinear(count, _constant(np.float32(1)), _constant(whole(zero)))


def product(counts: Any, weight: Any, scale: Any) -> Any:
    """`operations.product`: bytes times bytes, as runtimes recognize it."""
    from onnxscript import opset20

    op: Any = opset20
    return op.MatMul(counts, op.DequantizeLinear(op.Transpose(weight, perm=[1, 0]), scale, axis=1))


def sums(
    units: Any, weight: Any, stride: Sequence[int] = (), padding: Sequence[int] = (), dilation: Sequence[int] = (),
    groups: int = 1, most: int = 0, signed: bool = True,
) -> Any:  # fmt: skip
    """`operations.sums`: one product of bytes for each digit of the units, which are from −64 to 64.

    Two products of such bytes and of weights up to ±127 fit into 16 bits, in which processors without VNNI add them. A
    convolution multiplies its windows: onnxruntime has fast products of bytes for matrices alone.
    """
    import numpy as np
    from onnxscript import opset20

    op: Any = opset20
    zero, rows = _constant(np.uint8(SEVEN_BITS)), len(stride)
    around = (stride, padding, dilation)
    geometry = {"strides": [*stride], "dilations": [*dilation], "pads": [*padding, *padding], "group": groups}
    if groups > 1 and most * EIGHT_BITS * prod(weight.shape[1:]) < EXACT:  # floats are exact, too
        return op.Conv(units, op.CastLike(weight, units), **geometry)
    if groups > 1:
        raised = op.Add(op.Cast(weight, to=INT32), _constant(np.int32(EIGHT_BITS)))
        weight = op.CastLike(raised, zero)
    elif stride:
        places = [*range(2, rows + 2), 1, 0]
        sizes = (-1, weight.shape[0])
        weight, extent = (
            op.Reshape(op.Transpose(weight, perm=places), _constant(np.array(sizes))),
            weight.shape[2:],
        )
    else:
        weight = op.Transpose(weight, perm=[1, 0])

    def summed(digit: Any) -> Any:
        if groups > 1:
            return op.ConvInteger(digit, weight, zero, _constant(np.uint8(EIGHT_BITS)), **geometry)
        if not stride:
            return op.MatMulInteger(digit, weight, zero)
        seen = _windows(digit, zero, units.shape[2:], extent, *around)
        return op.Transpose(op.MatMulInteger(seen, weight, zero), perm=[0, rows + 1, *range(1, rows + 1)])

    return op.CastLike(_total(map(summed, _digits(units, most))), units)


def pairs(
    lhs: Any, rhs: Any, lhs_most: int = 0, rhs_most: int = 0, lhs_signed: bool = True, rhs_signed: bool = True
) -> Any:
    """`operations.pairs`: one product of bytes for each digit of both factors."""
    import numpy as np
    from onnxscript import opset20

    op: Any = opset20
    zero, columns = _constant(np.uint8(SEVEN_BITS)), [*_digits(rhs, rhs_most)]
    rows = (
        _total(op.MatMulInteger(row, column, zero, zero) for column in columns)
        for row in _digits(lhs, lhs_most)
    )
    return op.CastLike(_total(rows), lhs)


def _digits(units: Any, most: int) -> Iterator[Any]:
    """Yield the digits of whole numbers as bytes, the highest first."""
    import numpy as np
    from onnxscript import opset20

    op: Any = opset20
    zero, rest, digits = _constant(np.uint8(SEVEN_BITS)), units, 1
    while most >= SEVEN_BITS * BASE ** (digits - 1):
        digits += 1
    for power in reversed(range(digits)):
        base = _constant(np.float32(BASE**power))
        digit = op.QuantizeLinear(rest, base, zero)
        rest = op.Sub(rest, op.DequantizeLinear(digit, base, zero)) if power else rest
        yield digit


def _total(parts: Iterable[Any]) -> Any:
    """Return the number of these digits."""
    import numpy as np
    from onnxscript import opset20

    op: Any = opset20
    first, *others = parts
    for part in others:
        first = op.Add(op.Mul(first, _constant(np.int32(BASE))), part)
    return first


def _windows(
    image: Any, zero: Any, size: Sequence[int], extent: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> Any:  # fmt: skip
    """Return what each place of a convolution sees, [batch, …, places of the kernel · channels]."""
    import numpy as np
    from onnxscript import opset20

    op: Any = opset20
    rows = len(size)
    image = op.Transpose(image, perm=[0, *range(2, rows + 2), 1])
    if any(padding):
        image = op.Pad(image, _constant(np.array([0, *padding, 0] * 2)), zero)
    lasts = [s + 2 * p - d * (e - 1) for s, p, d, e in zip(size, padding, dilation, extent, strict=True)]
    if all(part == 1 for part in (*extent, *stride)):
        return image
    axes, steps = _constant(np.arange(1, rows + 1)), _constant(np.array(stride))
    parts = []
    for place in product_of(*map(range, extent)):
        starts = [d * k for d, k in zip(dilation, place, strict=True)]
        ends = [start + last for start, last in zip(starts, lasts, strict=True)]
        parts.append(op.Slice(image, _constant(np.array(starts)), _constant(np.array(ends)), axes, steps))
    return op.Concat(*parts, axis=-1)


TRANSLATIONS = {
    torch.ops.spikes.sums.default: sums,
    torch.ops.spikes.pairs.default: pairs,
    torch.ops.spikes.round.default: rounded,
    torch.ops.spikes.product.default: product,
}


def input_names(graph: Graph) -> list[str]:
    """Return the names of a graph's inputs, without the wrapper's."""
    names = [node.name for node in graph.inputs]
    if names == ["args_0"]:
        return ["input"]
    return [name.removeprefix("kwargs_").replace("args_", "input") for name in names]


def _session(file: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def _run(session: Any, batch: Any) -> list[Tensor]:
    names = [put.name for put in session.get_inputs()]
    leaves = [batch[name] for name in names] if isinstance(batch, dict) else tensors(batch)
    feeds = {name: leaf.detach().cpu().numpy() for name, leaf in zip(names, leaves, strict=True)}
    return [torch.from_numpy(value) for value in session.run(None, feeds)]
