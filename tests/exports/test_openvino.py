"""OpenVINO runs the ONNX file, as docs/export.md says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import onespike
from exports.small import Attention, Convolutions, small

for package in ("onnx", "onnxscript", "openvino"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'onespike[onnx]' openvino")


@pytest.mark.parametrize(("kind", "integer"), [(Convolutions, True), (Attention, False)])
def test_openvino_gives_the_networks_answers(kind: type[nn.Module], integer: bool, tmp_path: Path) -> None:
    import openvino

    snn, batches = small(kind)
    file = tmp_path / "network.onnx"
    onespike.export(snn, "onnx", file, batches, integer=integer)
    network = openvino.Core().compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    with torch.no_grad():
        output = (onespike.optimize(snn, integer_units=True) if integer else snn)(batches[0])
    expected = output["logits"] if isinstance(output, dict) else output
    answers = torch.from_numpy(network(batches[0].numpy())[0].copy())
    # sums are rounded in another order, so that a spike at a bound may differ
    assert (answers - expected).abs().median() < 1e-5 and torch.equal(answers.argmax(-1), expected.argmax(-1))
