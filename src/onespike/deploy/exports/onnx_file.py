"""ONNX: standard operators only, checked with onnxruntime.

Nodes are written from the definitions of `operations.py`, but for sums of products, which multiply bytes.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onespike.deploy.exports.base import Foreign, Request, Run, example, export_format
from onespike.deploy.exports.comparison import Answer, tensors
from onespike.deploy.exports.graph import Graph, marked, trace
from onespike.deploy.exports.operations import ZERO
from onespike.errors import UsageError

OPSET = 20
UINT8 = 2


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
    network = marked(request.network, batch, unsigned=True)
    graph = trace(network, batch)
    # a site may fire more than once
    counts = [f"{site}#{number}" for number, site in enumerate(network.sites)]
    translations = {torch.ops.spikes.sums.default: sums}
    model = translated(graph, [*network.outputs, *counts], request.facts, translations)
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


def sums(
    units: Any, weight: Any, stride: Sequence[int] = (), padding: Sequence[int] = (), dilation: Sequence[int] = (),
    groups: int = 1, most: int = 0, signed: bool = True,
) -> Any:  # fmt: skip
    """`operations.sums`: one product of bytes if counts fit into one, else two; of signed bytes some processors saturate sums."""
    import numpy as np
    import onnx
    from onnxscript import opset20

    op: Any = opset20

    def constant(value: Any) -> Any:
        return op.Constant(value=onnx.numpy_helper.from_array(np.asarray(value)))

    columns = None if stride else op.Transpose(weight, perm=[1, 0])

    def product(values: Any, zero: int) -> Any:
        bytes_ = op.Cast(op.Add(values, constant(np.float32(zero))) if zero else values, to=UINT8)
        zeros = constant(np.uint8(zero)), constant(np.uint8(ZERO))
        if columns is not None:
            return op.MatMulInteger(bytes_, columns, *zeros)
        geometry = {"strides": [*stride], "dilations": [*dilation], "pads": [*padding, *padding]}
        return op.ConvInteger(bytes_, weight, *zeros, group=groups, **geometry)

    if most <= (127 if signed else 255):
        total = product(units, ZERO if signed else 0)
    else:
        high = op.Floor(op.Mul(units, constant(np.float32(1 / 256))))
        low = op.Sub(units, op.Mul(high, constant(np.float32(256))))
        total = op.Add(op.Mul(product(high, ZERO), constant(np.int32(256))), product(low, 0))
    return op.CastLike(total, units)


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
