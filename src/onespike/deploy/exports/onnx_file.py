"""ONNX: standard operators only, checked with onnxruntime.

Nodes are written from the definitions of `operations.py`, but for those of `onnx_nodes.py`.
"""

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

from onespike.deploy.exports.base import Foreign, Request, example, export_format
from onespike.deploy.exports.byte_graph import bytes_
from onespike.deploy.exports.comparison import Answer, Run, tensors
from onespike.deploy.exports.folded_graph import multiply_
from onespike.deploy.exports.graph import Graph, graph_of
from onespike.errors import UsageError

OPSET = 20


def read(file: Path) -> Run:
    """Return how onnxruntime runs a file."""
    session = _session(file)
    return lambda batch: Answer(_run(session, batch), [])


@export_format("onnx", read=read, suffix=".onnx", needs=("onnx", "onnxscript", "onnxruntime"), extra="onnx")
def write(request: Request, file: Path) -> Foreign:
    """ONNX, standard operators only; on bytes by MatMulInteger and ConvInteger."""
    import onnxruntime
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    from onespike.deploy.exports.onnx_nodes import TRANSLATIONS

    if any(parameter.dtype is torch.bfloat16 for parameter in request.network.parameters()):
        raise UsageError(
            "export: onnxruntime does not multiply bfloat16. Use snn.float(), or export with format='pt2'."
        )
    batch = example(request.batches)
    graph = graph_of(request.network, batch, pure=request.integer)
    if request.integer:
        multiply_(graph)
    bytes_(graph)
    tables = len(graph.calls_of("spikes.fire"))
    if request.integer and tables:
        note = f"{tables} of {len(graph.sites)} sites fire by tables, which is slow: preset='bytes' makes every count a byte"
        graph.notes += (note,)
    # a site may fire more than once
    counts = [f"{site}#{number}" for number, site in enumerate(graph.sites)]
    model = translated(graph, [*graph.outputs, *counts], request.facts, TRANSLATIONS)
    probes = file.with_name(f"{file.name}.probes")
    model.save(str(probes))
    size = len(graph.outputs)
    del model.model.graph.outputs[size:]
    RemoveUnusedNodesPass()(model.model)
    model.save(str(file))
    session = _session(probes)
    for left in list(file.parent.glob(f"{probes.name}*")):
        left.unlink()

    def probe(batch: Any) -> Answer:
        values = _run(session, batch)
        return Answer(values[:size], list(zip(graph.sites, values[size:], strict=True)))

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
    return [torch.from_numpy(value) for value in session.run(None, feeds(batch, names, names))]


def feeds(batch: Any, names: Sequence[str], keys: Sequence[str]) -> dict[str, Any]:
    """Return a batch as arrays by the names of a file's inputs; `keys` are their names in a mapping."""
    leaves = [batch[key] for key in keys] if isinstance(batch, dict) else tensors(batch)
    return {name: leaf.detach().cpu().numpy() for name, leaf in zip(names, leaves, strict=True)}
