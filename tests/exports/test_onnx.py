"""ONNX files, float and integer, run by onnxruntime: every spike is the network's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import onespike
from exports.small import AFFINE, TOKENS, Attention, Convolutions, Deep, bert, installed, llama, small
from onespike.deploy.exports import onnx_file
from onespike.deploy.exports.comparison import Answer, Comparison, compare, largest_class
from onespike.recipe import Recipe

installed("onnx")

CASES = {
    "convolutions on integers": (Convolutions, None, True),
    "attention": (Attention, None, False),
    "affine on integers": (Attention, AFFINE, True),
    "steps by token on integers": (Attention, TOKENS, True),
}


@pytest.mark.parametrize(("kind", "recipe", "integer"), CASES.values(), ids=CASES)
def test_spikes_are_the_networks_own(
    kind: type[nn.Module], recipe: Recipe | None, integer: bool, tmp_path: Path
) -> None:
    snn, batches = small(kind, recipe)
    done = onespike.export(snn, "onnx", tmp_path / "a.onnx", batches, integer=integer, facts={"scale": 0.25})
    comparison = done.comparison
    assert comparison.inputs == 8 and comparison.active > 100
    # functions between two products are rounded otherwise, so that a spike at a bound may differ
    assert comparison.differ <= comparison.counts // 1000
    assert comparison.output_difference <= 1e-3 * comparison.output_largest or comparison.differ
    assert comparison.answers_differ == 0

    import onnx

    model = onnx.load(tmp_path / "a.onnx")
    used = {node.op_type for node in model.graph.node}
    assert {node.domain for node in model.graph.node} == {""} and model.opset_import[0].version >= 20
    assert integer == bool(used & {"MatMulInteger", "ConvInteger"})
    assert {p.key: p.value for p in model.metadata_props}["onespike.scale"] == "0.25"
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param  # any batch
    stored = json.loads((tmp_path / "a.onnx.verified.json").read_text())
    assert stored["comparison"]["differ"] == comparison.differ
    assert stored["form"] == ("integer" if integer else "float")
    sheet = ["a.onnx.sheet.json"] if integer else []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx", *sheet, "a.onnx.verified.json"]


def test_a_difference_is_found(tmp_path: Path) -> None:
    """A file of another λ is not called the same."""
    snn, batches = small(Deep)
    request = onespike.deploy.exports.base.Request(snn, batches, {})
    foreign = onnx_file.write(request, tmp_path / "a.onnx")
    other = onespike.deploy.exports.base.optimize(snn)  # a copy
    onespike.set_scale_(other, 0.5)
    comparison = compare(other, onnx_file.read(tmp_path / "a.onnx"), foreign.probe, batches, largest_class)
    assert comparison.differ > 0 and comparison.sites and "), at 2:linear0_input" in str(comparison)
    assert 0 < comparison.origins <= comparison.differ
    assert f"differ (they go back to {comparison.origins})" in str(comparison)


def test_what_follows_from_one_count_is_told_apart() -> None:
    counts = [("a", torch.zeros(2, 3)), ("b", torch.zeros(2, 3)), ("c", torch.zeros(2, 3))]
    other = [(name, value.clone()) for name, value in counts]
    other[1][1][0, 1] = 1.0  # the first input differs once at b, and then at c
    other[2][1][0] = 1.0
    output = torch.zeros(2, 4)
    comparison = Comparison()
    comparison.update((output, Answer([output], counts)), Answer([output], other), largest_class)
    assert (comparison.counts, comparison.differ, comparison.origins, comparison.inputs) == (18, 4, 1, 2)
    other[0][1][1, 2] = -2.0  # the second differs from a on
    comparison.update((output, Answer([output], counts)), Answer([output], other), largest_class)
    assert (comparison.differ, comparison.origins, comparison.sites["a"]) == (4 + 5, 1 + 2, [12, 1, 2])
    comparison.update((output, Answer([output], counts)), Answer([output], counts), largest_class)
    assert sum(compared for compared, _, _ in comparison.sites.values()) == comparison.counts == 54


def tokens(rows: int, length: int, padded: bool) -> dict[str, Any]:
    batch: dict[str, Any] = {"input_ids": torch.randint(0, 20, (rows, length))}
    if not padded:
        return batch | {"use_cache": False}
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[1, length - 2 :] = 0
    return batch | {"attention_mask": mask}


@pytest.mark.parametrize("make", [llama, bert])
def test_language_models_take_any_batch_and_any_number_of_tokens(make: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    batches = [tokens(2, 7, make is bert), tokens(3, 5, make is bert)]
    snn = onespike.spike(make().eval(), batches[:1])
    done = onespike.export(snn, "onnx", tmp_path / "a.onnx", batches)
    assert done.comparison.inputs == 5 and done.comparison.active > 100 and done.notes == ()
    assert done.comparison.differ <= done.comparison.counts // 500


@pytest.mark.parametrize("levels", ["linear:4", "linear:80"], ids=["one byte", "two bytes"])
def test_attention_multiplies_bytes(levels: str, tmp_path: Path) -> None:
    import onnx

    snn, batches = small(Attention, Recipe(levels=levels, io="int8"))
    done = onespike.export(snn, "onnx", tmp_path / "a.onnx", batches, integer=True)
    assert done.comparison.differ <= done.comparison.counts // 500
    graph = onnx.load(tmp_path / "a.onnx").graph
    kinds = [node.op_type for node in graph.node]
    made_by = {name: node.op_type for node in graph.node for name in node.output}
    floats = [node for node in graph.node if node.op_type == "MatMul"]
    assert kinds.count("MatMulInteger") >= 2 and "Gemm" not in kinds
    assert {made_by[node.input[1]] for node in floats} <= {"DequantizeLinear"}  # weights as bytes


def test_openvino_gives_the_networks_answers(tmp_path: Path) -> None:
    """OpenVINO runs the ONNX file, as docs/export.md says."""
    openvino = pytest.importorskip("openvino", reason="openvino is not installed: pip install openvino")
    snn, batches = small(Convolutions)
    file = tmp_path / "network.onnx"
    onespike.export(snn, "onnx", file, batches, integer=True)
    network = openvino.Core().compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    with torch.no_grad():
        expected = onespike.optimize(snn, integer_units=True)(batches[0])
    answers = torch.from_numpy(network(batches[0].numpy())[0].copy())
    # sums are rounded in another order, so that a spike at a bound may differ
    assert (answers - expected).abs().median() < 1e-5 and torch.equal(answers.argmax(-1), expected.argmax(-1))
