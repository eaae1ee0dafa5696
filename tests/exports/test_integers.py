"""The format for chips: NumPy alone reproduces every spike, and integer thresholds decide as the neurons do."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import onespike
from exports.small import AFFINE, Attention, Convolutions, Deep, InPlace, small
from onespike.deploy.exports import Exported
from onespike.deploy.exports.integers import NetworkRecord, Replay, schema
from onespike.errors import LoadError, UsageError
from onespike.recipe import Recipe
from onespike.runtime.validated import parse

SCRIPT = Path(__file__).parents[2] / "examples" / "replay_integers.py"
CASES = {
    "convolutions": (Convolutions, None),
    "attention": (Attention, None),
    "affine attention": (Attention, AFFINE),
    "affine convolutions": (Convolutions, AFFINE),
    "in place": (InPlace, None),
    "in place, affine": (InPlace, AFFINE),
    "a chain": (Deep, Recipe(percentile=0.0)),
}


def written(kind: type[nn.Module], recipe: Recipe | None, out: Path) -> Exported:
    snn, batches = small(kind, recipe)
    return onespike.export(snn, "integers", out, batches, facts={"scale": 0.25})


@pytest.mark.parametrize(("kind", "recipe"), CASES.values(), ids=CASES)
def test_numpy_reproduces_every_spike(kind: type[nn.Module], recipe: Recipe | None, tmp_path: Path) -> None:
    done = written(kind, recipe, tmp_path / "a")
    # the network itself rounds to float32 between products
    assert done.comparison.differ <= done.comparison.counts // 1000 and done.comparison.active > 50
    compared, differ, apart = runpy.run_path(str(SCRIPT))["replay"](tmp_path / "a")
    assert compared > 100 and differ == 0 and apart < 1e-5


def test_a_wrong_weight_is_found(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    written(Deep, None, tmp_path / "a")
    tensors = load_file(tmp_path / "a" / "network.safetensors")
    name = next(name for name, tensor in tensors.items() if tensor.dtype == torch.int8)
    tensors[name] = tensors[name] + 1
    save_file(tensors, tmp_path / "a" / "network.safetensors")
    assert runpy.run_path(str(SCRIPT))["replay"](tmp_path / "a")[1] > 0


def test_the_script_is_short() -> None:
    lines = SCRIPT.read_text().splitlines()
    assert len(lines) <= 100
    assert all(len(line) <= 125 for line in lines)


@pytest.mark.parametrize("kind", [Deep, Convolutions])
def test_integer_thresholds_decide_as_neurons_do(kind: type[nn.Module], tmp_path: Path) -> None:
    written(kind, None, tmp_path / "a")
    replay = Replay.read(tmp_path / "a")
    decided = 0
    for site in replay.record["sites"].values():
        if site["thresholds"] is None:
            continue
        first = replay.tensors[site["thresholds"]].long()
        product = next(node for node in replay.record["nodes"] if node["name"] == site["of"])
        scale, bias = (replay.tensors[arg["value"]] for arg in product["args"][2:4])
        step, levels = replay.tensors[site["steps"][0]], [0, *site["levels"]]
        sums = torch.cat(
            [first - 1, first, first + 1], 1
        )  # [outputs, sums]: at every threshold and beside it
        value = (sums * scale[:, None] + bias[:, None]).clamp(min=0)
        bounds = torch.tensor(site["bounds"], dtype=torch.float64)
        fired = torch.bucketize(value / step + 0.5, bounds, right=True)
        passed = (sums[:, :, None] >= first[:, None, :]).sum(-1)
        assert torch.equal(torch.tensor(levels)[passed], torch.tensor(levels)[fired])
        decided += 1
    assert decided == {Deep: 1, Convolutions: 1}[kind]


def test_record_and_schema(tmp_path: Path) -> None:
    written(Convolutions, None, tmp_path / "a")
    text = (tmp_path / "a" / "network.json").read_bytes()
    record = json.loads(text)
    parse(NetworkRecord, text, "network.json", "")
    assert json.loads((tmp_path / "a" / "schema.json").read_text()) == schema()
    assert record["version"] == 1 and record["facts"] == {"scale": 0.25}
    ops = {node["op"] for node in record["nodes"]}
    assert {"spikes.fire", "spikes.linear", "spikes.conv"} <= ops
    events = Replay.read(tmp_path / "a")(small(Convolutions)[1][0]).counts
    assert np.prod(record["sites"][events[0][0]]["shape"]) == events[0][1].numel()
    (tmp_path / "a" / "network.json").write_text('{"format": 1}')
    with pytest.raises(LoadError, match="the file is damaged"):
        Replay.read(tmp_path / "a")


def test_the_float_form_is_refused(tmp_path: Path) -> None:
    snn, batches = small(Deep)
    with pytest.raises(UsageError) as error:
        onespike.export(snn, "integers", tmp_path / "a", batches, integer=False)
    assert str(error.value) == "export: integers cannot hold the float form. It is always on integers."
