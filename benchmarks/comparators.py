"""What `speed.py` compares a converted network with: each function gives a forward in a library of others."""

from __future__ import annotations

import copy
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onespike.deploy.exports import FORMATS
from onespike.deploy.exports.base import Request

Forward = Callable[..., Any]


def spikingjelly(model: nn.Module, x: torch.Tensor, steps: int) -> Forward:
    """Rate coding with T passes of the whole network, as SpikingJelly's ann2snn does it."""
    from spikingjelly.activation_based import ann2snn, functional

    network = ann2snn.Converter(mode="max", dataloader=[(x[:2], None)])(model).eval()

    def run(x: torch.Tensor) -> torch.Tensor:
        functional.reset_net(network)
        return torch.stack([network(x) for _ in range(steps)]).mean(0)

    return run


def torchao_int8(model: nn.Module) -> nn.Module:
    """Weights and activations of 8 bits, ranges taken from each input."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    quantized = copy.deepcopy(model)
    quantize_(quantized, Int8DynamicActivationInt8WeightConfig())
    return quantized


def onnxruntime_int8(model: nn.Module, x: torch.Tensor) -> Forward:
    """Its dynamic int8: bytes times bytes in linear maps, ranges taken from each input."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    exported = io.BytesIO()
    torch.onnx.export(model, (x,), exported, dynamo=False, input_names=["x"])
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(onnx.load_from_string(exported.getvalue()), before)
        quantize_dynamic(before, after, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul", "Gemm"])
        return session(after)


def session(file: Path) -> Forward:
    """An ONNX file with one input, x, in ONNX Runtime with torch's number of threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    opened = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda x: opened.run(None, {"x": x.numpy()})[0]


def exported(snn: nn.Module, x: torch.Tensor, integer: bool = True) -> Forward:
    """Our own form as `onespike export --format onnx [--integer]` writes it, in the same runtime."""
    several = x if len(x) > 1 else torch.cat([x, x])  # one input alone would fix the size of the batch
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        known, file = FORMATS["onnx"], Path(folder) / "network.onnx"
        known.write(Request.of(snn, [several], integer, {}), file)
        run = known.read(file)
    return lambda x: run(x).outputs[0]
