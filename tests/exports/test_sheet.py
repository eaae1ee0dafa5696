"""The sheet for hardware: what a site stores and sends, by hand, and what is left beside spikes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import onespike
from exports.small import InPlace, installed, small
from onespike.deploy.exports.base import hardware
from onespike.deploy.exports.sheet import FIXED, MULTIPLIED, SHIFTED
from onespike.errors import UsageError
from onespike.recipe import Recipe, preset


def network(**fields: object) -> tuple[nn.Module, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)).eval()
    batches = [torch.randn(8, 6) for _ in range(2)]
    return onespike.spike(model, batches, Recipe(**fields)), batches  # type: ignore[arg-type]


def test_a_site_by_hand():
    snn, batches = network(io="spiking", levels="linear:4")
    made = hardware(snn, batches)
    assert [row.site for row in made.sites] == ["0:linear0_input", "2:linear0_input", "4:linear0_input"]
    row = made.sites[2]
    integer = onespike.optimize(snn, integer_units=True)
    form = integer[4].integer_linear0_input
    # counts up to 8, behind a ReLU
    assert (row.decides, row.payload_bits, row.weight_bytes) == ("compares", 4, 3 * 12)
    assert row.accumulator_bits == int(8 * form.weight.int().abs().sum(1).max()).bit_length() + 1
    counts = torch.cat([integer[4].neurons.linear0_input.spikes(integer[:4](x)) for x in batches])
    largest = int((counts.float() @ form.weight.float().t()).abs().max())
    assert (row.measured_bits, row.state_bytes) == (largest.bit_length() + 1, 3 * 2)
    seen = (counts != 0).sum(1).tolist()
    assert row.events == pytest.approx(sum(seen) / 16) and row.most_events == max(seen)
    assert row.traffic_bytes == pytest.approx(row.events * (row.payload_bits + 4) / 8)  # 12 neurons
    assert made.floats == []
    left = {(row.layer, row.name): row.number for row in made.operations}
    assert not any(name in ("gelu", "relu") for _, name in left)
    assert left["2", "comparison"] == 16 * 5 and left["4", f"sum: {SHIFTED}"] == 3

    totals = made.to_dict()["totals"]
    assert totals["events"] == pytest.approx(sum(row.events for row in made.sites))
    assert totals["weight_bytes"] == 6 * 16 + 16 * 12 + 12 * 3 and totals["payload_bits"] == 5
    assert totals["comparison"] == sum(o.number for o in made.operations if o.name == "comparison")


def test_a_product_whose_sums_and_values_are_read_is_one():
    snn, batches = small(InPlace, preset("chip", passes=("nearest",), budget=None))
    made = hardware(snn, batches)
    first, *_ = made.sites
    assert first.site == "first:conv0_input"
    assert (first.weight_bytes, first.state_bytes % (6 * 6 * 6)) == (6 * 3 * 9, 0)
    assert first.state_bytes == 6 * 6 * 6 * -(-first.accumulator_bits // 8)
    weights = sum(w.numel() for name, w in snn.named_parameters() if name.endswith("weight"))
    assert made.totals["weight_bytes"] == weights


def test_many_levels_shift_or_multiply():
    for digits, expected in ((0, MULTIPLIED), (1, SHIFTED), (2, SHIFTED)):
        snn, batches = network(
            io="int8", levels="linear:200", step_digits=digits, passes=("nearest", "center")
        )
        rows = {(row.layer, row.name): row for row in hardware(snn, batches).operations}
        assert rows["2", f"neuron: {expected}"].number == 16 and rows["1", "gelu"].width == FIXED


def test_products_in_floats_are_listed_and_refused(tmp_path: Path):
    snn, batches = network()
    made = hardware(snn, batches)
    assert [(row.layer, row.number) for row in made.floats] == [("0", 96), ("4", 36)]
    onespike.export(snn, "integers", tmp_path / "a", batches)
    with pytest.raises(UsageError, match=r"the products of 0, 4 are left in floats\. Convert with io='int8'"):
        onespike.export(snn, "integers", tmp_path / "b", batches, integer=True)
    assert not list(tmp_path.glob("b*"))
    onespike.export(network(io="int8")[0], "integers", tmp_path / "c", batches, integer=True)


@pytest.mark.parametrize(
    ("name", "suffix"), [("integers", ""), ("onnx", ".onnx"), ("qonnx", ".onnx"), ("nir", ".nir")]
)
def test_the_sheet_lies_beside_every_integer_file(name: str, suffix: str, tmp_path: Path):
    installed(name)
    snn, batches = network(io="spiking", levels="linear:4")
    done = onespike.export(snn, name, tmp_path / f"a{suffix}", batches, integer=True)
    assert done.sheet == hardware(snn, batches)
    written = json.loads((tmp_path / f"a{suffix}.sheet.json").read_text())
    assert (
        written == json.loads(json.dumps(done.sheet.to_dict())) and written["totals"]["weight_bytes"] == 324
    )


def test_what_runs_in_torch_or_in_floats_has_no_sheet(tmp_path: Path):
    installed("onnx")
    snn, batches = network(io="spiking", levels="linear:4")
    for name, integer in (("pt2", True), ("pt2", False), ("onnx", False)):
        done = onespike.export(snn, name, tmp_path / f"{integer}.{name}", batches, integer=integer)
        assert done.sheet is None
    assert not list(tmp_path.glob("*.sheet.json"))
