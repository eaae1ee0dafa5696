"""OpenVINO: the ONNX form as its model, for Intel processors, GPUs and NPUs."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from onespike.deploy.exports.base import Foreign, Request, Run, export_format
from onespike.deploy.exports.comparison import Answer
from onespike.deploy.exports.onnx_file import onnx_model

PRECISION = {"INFERENCE_PRECISION_HINT": "f32"}
"""Without it, processors with bfloat16 round activations to 8 bits of mantissa, and spikes with them."""
NOTE = "compile it with INFERENCE_PRECISION_HINT=f32: in bfloat16, which OpenVINO prefers where it can, other spikes fire"


def read(file: Path) -> Run:
    """Return how OpenVINO runs a folder."""
    import openvino

    compiled = openvino.Core().compile_model(str(file / "network.xml"), "CPU", PRECISION)
    return lambda batch: _run(compiled, batch)


@export_format("openvino", read=read, suffix="", needs=("onnx", "onnxscript", "openvino"), extra="openvino")
def write(request: Request, file: Path) -> Foreign:
    """OpenVINO, a folder with network.xml and network.bin."""
    import openvino

    model, network, notes = onnx_model(request)
    file.mkdir()
    whole, probes = file / "network.onnx", file / "probes.onnx"
    model.save(str(probes))
    del model.model.graph.outputs[len(network.outputs) :]
    model.save(str(whole))
    core = openvino.Core()
    try:
        openvino.save_model(core.read_model(str(whole)), str(file / "network.xml"), compress_to_fp16=False)
    except RuntimeError as error:
        if "iostream error" not in str(error):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file)) from error  # all that it says
    probing = core.compile_model(str(probes), "CPU", PRECISION)
    for left in (*file.glob("network.onnx*"), *file.glob("probes.onnx*")):
        left.unlink()

    def probe(batch: Any) -> Answer:
        found, size = _run(probing, batch), len(network.outputs)
        return Answer(found[:size], list(zip(network.sites, found[size:], strict=True)))

    version = openvino.__version__.partition("-")[0]
    return Foreign(f"openvino {version}", probe, (*notes, NOTE))


def _run(compiled: Any, batch: Any) -> list[Tensor]:
    given = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
    if isinstance(batch, dict):
        given = [batch[put.any_name] for put in compiled.inputs]
    found = compiled([leaf.detach().numpy() for leaf in given])
    return [torch.from_numpy(found[i].copy()) for i in range(len(compiled.outputs))]
