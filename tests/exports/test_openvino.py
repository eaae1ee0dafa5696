"""OpenVINO runs the ONNX form, in float and on integers."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

import onespike
from exports.small import Attention, Convolutions, small

for package in ("onnx", "onnxscript", "openvino"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'onespike[openvino]'")


@pytest.mark.parametrize(("kind", "integer"), [(Convolutions, True), (Attention, False)])
def test_openvino_fires_the_networks_spikes(kind: type[nn.Module], integer: bool, tmp_path: Path) -> None:
    snn, batches = small(kind)
    done = onespike.export(snn, "openvino", tmp_path / "a", batches, integer=integer)
    found = done.comparison
    assert found.active > 100 and found.differ <= found.counts // 1000 and found.answers_differ == 0
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == ["network.bin", "network.xml"]
    assert any("INFERENCE_PRECISION_HINT=f32" in note for note in done.notes)
