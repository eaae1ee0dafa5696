"""The file for FPGAs: qonnx's executor fires what the network fires, and types and layouts are as FINN expects them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import onespike
from exports.small import AFFINE, Attention, Cnn, Convolutions, InPlace, installed, small
from onespike.deploy.exports import qonnx_file
from onespike.errors import UsageError
from onespike.recipe import Recipe

installed("qonnx")


EDGES = Recipe(io="int8")
CASES = {
    "edges": (Cnn, EDGES),
    "groups and pools": (Convolutions, AFFINE),
    "branches": (InPlace, None),
    "attention": (Attention, AFFINE),
}


def written(kind: type[nn.Module], recipe: Recipe | None, out: Path) -> tuple[Any, Any]:
    from qonnx.core.modelwrapper import ModelWrapper

    snn, batches = small(kind, recipe)
    done = onespike.export(snn, "qonnx", out / "a.onnx", batches, facts={"scale": 0.25})
    return done, ModelWrapper(str(out / "a.onnx"))


@pytest.mark.parametrize(("kind", "recipe"), CASES.values(), ids=CASES)
def test_the_executor_fires_what_the_network_fires(
    kind: type[nn.Module], recipe: Recipe | None, tmp_path: Path
) -> None:
    done, model = written(kind, recipe, tmp_path)
    comparison = done.comparison
    assert comparison.active > 500 and comparison.answers_differ == 0
    # functions between products are rounded in another order there, so that a spike at a bound may differ
    assert comparison.differ <= comparison.counts // 1000
    assert not {"Div", "Erf", "GreaterOrEqual", "Constant"} & {node.op_type for node in model.graph.node}


def test_types(tmp_path: Path) -> None:
    _, model = written(Cnn, EDGES, tmp_path)
    products = [node for node in model.graph.node if node.op_type in ("MatMul", "Conv")]
    kinds = [[str(model.get_tensor_datatype(name)) for name in (*n.input, *n.output)] for n in products]
    assert len(products) == 4 and all(kind[1:] == ["INT8", "INT32"] for kind in kinds)
    assert all("INT" in kind[0] for kind in kinds)
    first = model.graph.node[0]
    assert first.op_type == "MultiThreshold" and first.domain == "qonnx.custom_op.general"
    assert model.get_tensor_shape("global_in") == [1, 2, 6, 6]
    assert "2:conv0_input" in model.get_all_tensor_names()
    assert model.get_metadata_prop("onespike.scale") == "0.25"


def test_thresholds_are_rounded_up() -> None:
    exact = torch.tensor([0.1, 2.0**24 + 1, -(2.0**24) - 1, 3.0, 2.0**40], dtype=torch.float64)
    rounded = qonnx_file._upwards(exact).numpy()
    assert (rounded[:4] >= exact[:4].numpy()).all() and rounded[3] == 3 and rounded[4] == qonnx_file.LARGEST
    below = np.nextafter(rounded[:4], np.float32(-np.inf))
    assert (below.astype(float) < exact[:4].numpy()).all()


def test_refused(tmp_path: Path) -> None:
    snn, batches = small(Cnn, Recipe(levels="bits:10"))
    with pytest.raises(UsageError) as error:
        onespike.export(snn, "qonnx", tmp_path / "a.onnx", batches)
    assert str(error.value) == (
        "export: qonnx has no thresholds for 2:conv0_input: it has 1023 levels. Convert with fewer and without the pass "
        "layout, or try format='onnx'."
    )
    assert list(tmp_path.iterdir()) == []
