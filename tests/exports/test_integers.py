"""The format for chips: NumPy alone reproduces every spike, and integer thresholds decide as the neurons do."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import onespike
from exports.small import AFFINE, TOKENS, Attention, Convolutions, Deep, InPlace, small
from exports.small import SHAPES as SMALL_SHAPES
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
    "steps by token": (Attention, TOKENS),
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


class Signed(nn.Sequential):
    """Linear maps with nothing between, so that neurons fire counts of both signs."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 16), nn.Linear(16, 12), nn.Linear(12, 8), nn.Linear(8, 3))


SMALL_SHAPES[Signed] = (6,)
CHANNEL = Recipe(granularity="channel", io="spiking")
CENTERED = Recipe(passes=("nearest", "center"), io="spiking")
DECIDED = {
    "a chain": (Deep, None, 1),
    "convolutions": (Convolutions, None, 1),
    "steps by channel": (Deep, CHANNEL, 3),
    "centers": (Deep, CENTERED, 3),
    "both signs": (Signed, Recipe(io="spiking"), 3),
    "both signs, centers": (Signed, CENTERED, 3),
    "centers in convolutions": (Convolutions, CENTERED, 1),
}
"""Network, recipe, and how many of its neurons are decided by sums alone."""


@pytest.mark.parametrize(("kind", "recipe", "decided"), DECIDED.values(), ids=DECIDED)
def test_integer_thresholds_decide_as_neurons_do(
    kind: type[nn.Module], recipe: Recipe | None, decided: int, tmp_path: Path
) -> None:
    written(kind, recipe, tmp_path / "a")
    replay = Replay.read(tmp_path / "a")
    sites = [site for site in replay.record["sites"].values() if site["of"] is not None]
    assert len(sites) == decided
    for site in sites:
        nodes = {node["name"]: node for node in replay.record["nodes"]}
        product = nodes[site["of"]]
        scale, bias = (replay.tensors[arg["value"]] for arg in product["args"][2:4])
        names = [name for name in (site["thresholds"], site["below"]) if name is not None]
        first = torch.cat([replay.tensors[name].long() for name in names], 1)
        # at every threshold and beside it, [outputs, sums]; sums end before ±2³¹, which stand for never and always
        near = torch.cat([first - 1, first, first + 1], 1).clamp(-(2**30), 2**30)
        rectified = nodes[nodes[site["fires"]]["args"][0]["value"]]["op"] != product["op"]
        value = near * scale[:, None] + bias[:, None]
        value = value.clamp(min=0) if rectified else value
        fired = torch.ops.spikes.fire(
            value, *(_by_output(replay, site, part) for part in (site["steps"][0], site["steps"][1], site["center"])),
            None, site["sides"], site["levels"], site["bounds"], "",
        )  # fmt: skip
        table = torch.tensor([0, *site["levels"]])
        passed = torch.zeros_like(near)
        if site["thresholds"] is not None:
            passed += table[
                (near[:, :, None] >= replay.tensors[site["thresholds"]].long()[:, None, :]).sum(-1)
            ]
        if site["below"] is not None:
            passed -= table[(near[:, :, None] <= replay.tensors[site["below"]].long()[:, None, :]).sum(-1)]
        assert torch.equal(passed, fired.long()) and fired.count_nonzero() > 0


def _by_output(replay: Replay, site: dict[str, Any], name: str | None) -> torch.Tensor | None:
    return None if name is None else replay.tensors[name].reshape(-1, 1)


def test_record_and_schema(tmp_path: Path) -> None:
    written(Convolutions, None, tmp_path / "a")
    text = (tmp_path / "a" / "network.json").read_bytes()
    record = json.loads(text)
    parse(NetworkRecord, text, "network.json", "")
    assert json.loads((tmp_path / "a" / "schema.json").read_text()) == schema()
    published = SCRIPT.parents[1] / "docs" / "integers.schema.json"
    assert json.loads(published.read_text()) == schema()
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
