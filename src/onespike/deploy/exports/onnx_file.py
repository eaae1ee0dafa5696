"""ONNX: standard operators only, checked with onnxruntime."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from onespike.deploy.exports.base import Foreign, Request, Run, example, export_format
from onespike.deploy.exports.comparison import Answer
from onespike.deploy.exports.marks import Marked, marked
from onespike.deploy.exports.tracing import inputs_of, trace
from onespike.errors import UsageError

PROBES = ".probes"


def read(file: Path) -> Run:
    """Return how onnxruntime runs a file."""
    session = _session(file)
    return lambda batch: _run(session, batch)


@export_format("onnx", read=read, suffix=".onnx", needs=("onnx", "onnxscript", "onnxruntime"), extra="onnx")
def write(request: Request, file: Path) -> Foreign:
    """ONNX, standard operators only; on bytes by MatMulInteger and ConvInteger."""
    import onnxruntime

    model, network, notes = onnx_model(request)
    probes = file.with_name(file.name + PROBES)
    model.save(str(probes))
    graph = model.model.graph
    del graph.outputs[len(network.outputs) :]
    model.save(str(file))
    probing = _session(probes)
    for left in (*file.parent.glob(f"{probes.name}*"),):
        left.unlink()

    def probe(batch: Any) -> Answer:
        found = _run(probing, batch)
        size = len(network.outputs)
        return Answer(found[:size], list(zip(network.sites, found[size:], strict=True)))

    return Foreign(f"onnxruntime {onnxruntime.__version__}", probe, notes)


def onnx_model(request: Request) -> tuple[Any, Marked, tuple[str, ...]]:
    """Return the network as ONNX with the counts of every site as further outputs."""
    if any(parameter.dtype is torch.bfloat16 for parameter in request.snn.parameters()):
        raise UsageError(
            "export: onnxruntime does not multiply bfloat16. Use snn.float(), or export with format='pt2'."
        )
    batch = example(request.batches)
    network = marked(request.snn, batch, integers=request.integer, unsigned=True)
    program, notes = trace(network, batch)
    model = translated(program, [*network.outputs, *_apart(network.sites)])
    for name, value in request.facts.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        model.model.metadata_props[f"onespike.{name}"] = text
    return model, network, notes


def translated(program: Any, outputs: list[str]) -> Any:
    """Return a program with marks as ONNX, without the source lines of each node."""
    from onespike.deploy.exports.onnx_nodes import OPSET, translations

    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            model: Any = torch.onnx.export(
                program,
                opset_version=OPSET,
                dynamo=True,
                custom_translation_table=translations(),
                input_names=_inputs(program),
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
    return model


def _inputs(program: Any) -> list[str]:
    """Return the names of a program's inputs, without the wrapper's."""
    names = [node.name for node in inputs_of(program)]
    if names == ["args_0"]:
        return ["input"]
    return [name.removeprefix("kwargs_").replace("args_", "input") for name in names]


def _apart(sites: list[str]) -> list[str]:
    """Return names for the calls of a site that fires more than once."""
    seen: dict[str, int] = {}
    names = []
    for site in sites:
        seen[site] = seen.get(site, 0) + 1
        names.append(site if seen[site] == 1 else f"{site}#{seen[site]}")
    return names


def _session(file: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def _run(session: Any, batch: Any) -> list[Tensor]:
    names = [put.name for put in session.get_inputs()]
    given = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
    if isinstance(batch, dict):
        given = [batch[name] for name in names]
    feeds = {name: leaf.detach().cpu().numpy() for name, leaf in zip(names, given, strict=True)}
    return [torch.from_numpy(value) for value in session.run(None, feeds)]
