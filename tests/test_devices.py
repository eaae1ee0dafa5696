"""Device maps on a machine without accelerators: everything on the CPU, and parts that are read from disk."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from torch import nn

from comparisons import same_thresholds
from contract.networks import sequences, transformer
from onespike import calibrate, convert, preset, verify
from onespike.conversion.network import convert_
from onespike.errors import ConversionError, LoadError, UsageError
from onespike.evaluation.side_by_side import evaluate
from onespike.neurons import Neuron
from onespike.runtime.devices import place_, state_of
from onespike.runtime.forward import device_of
from onespike.tasks import Accuracy

pytest.importorskip("accelerate", reason="accelerate is not installed")

PARTS = ("stem", "norm1", "norm2", "qkv", "proj", "fc1", "fc2", "act", "head")


@pytest.fixture
def write(tmp_path):
    def map_(devices: object) -> str:
        path = tmp_path / "map.json"
        path.write_text(devices if isinstance(devices, str) else json.dumps(devices))
        return str(path)

    return map_


def on_disk(*parts: str) -> dict[str, str]:
    return {part: "disk" if part in parts else "cpu" for part in PARTS}


@pytest.mark.parametrize("disk", [("qkv",), ("stem", "fc1", "head"), PARTS])
def test_weights_on_disk_give_the_same_network(write, disk):
    plain, x = transformer(), sequences()
    placed = place_(transformer(), device_map=write(on_disk(*disk)))
    assert any(p.is_meta for p in placed.parameters())
    thresholds = calibrate(plain, [x])
    found = calibrate(placed, [x])
    same_thresholds(found, thresholds)
    ann, snn = convert(plain, thresholds), convert(placed, found, share_weights=True)
    with torch.inference_mode():
        assert torch.equal(placed(x), plain(x))
        assert torch.equal(snn(x), ann(x))
    assert all(t.device.type == "cpu" for m in snn.modules() if isinstance(m, Neuron) for t in m.buffers())
    assert verify(snn, x).ok
    labels = torch.zeros(len(x), dtype=torch.long)
    pairs = ((plain, ann), (placed, snn))
    one, other = (evaluate(*pair, [(x, labels)], Accuracy()).to_dict() for pair in pairs)
    assert other["dead_share"] is None  # found by gradients, which weights on disk do not have
    differences = {"seconds": one["seconds"], "dead_share": one["dead_share"]}
    assert {**other, **differences} == one


def test_strategies_put_everything_on_the_only_device():
    for name in ("auto", "balanced", "sequential"):
        placed = place_(transformer(), device_map=name)
        assert device_of(placed) == torch.device("cpu")
        assert not any(p.is_meta for p in placed.parameters())


def test_the_weights_can_be_saved(write):
    placed = place_(transformer(), device_map=write(on_disk("fc1", "fc2")))
    expected = transformer().state_dict()
    found = state_of(placed)
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_norm_on_disk_cannot_be_folded(write):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3)).eval()
    placed = place_(model, device_map=write({"0": "disk", "1": "cpu", "2": "cpu", "3": "cpu"}))
    thresholds = calibrate(placed, [torch.randn(2, 3, 8, 8)])
    with pytest.raises(ConversionError, match=r"^convert: the weights of 0 are not in memory, so its Batch"):
        convert_(placed, thresholds, preset("sformer", io="spiking"))


@pytest.mark.parametrize(("devices", "message"), [
    ("{", r'map\.json: the file is damaged \(invalid JSON: .*\)\. Write an object such as \{"": "cpu"\}\.$'),
    ([], r'map\.json: the file is damaged \(input should be an object\)\. Write an object such as \{"": "cpu"\}\.$'),
    ({"tail": "cpu"}, r"^device map .*: the network has no module 'tail'\. Correct its name\.$"),
    ({"": "nowhere"}, r"^device 'nowhere' cannot be used here \(.*\)\. Try device='cpu'\.$"),
    ({"stem": "cpu"}, r"^device map .*: .*Give every part of the network a device\.$"),
])  # fmt: skip
def test_bad_maps(write, devices, message):
    with pytest.raises(UsageError, match=message):
        place_(transformer(), device_map=write(devices))


@pytest.mark.parametrize(("given", "message"), [
    (("cpu", "all"), r"^device map 'all': neither a strategy \(auto, balanced, .*, blocks\) nor a file\. Give one"),
    (("meta", "auto"), r"^device='meta' and a device map exclude each other\. Give one of them\.$"),
    (("meta",), r"^device 'meta' cannot be used here \(.*\)\. Try device='cpu'\.$"),
])  # fmt: skip
def test_bad_words(given, message):
    with pytest.raises(UsageError, match=message):
        place_(transformer(), *given)


def test_without_accelerate(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(LoadError, match=r"^device map: it needs accelerate\. .* 'onespike\[accelerate\]'$"):
        place_(transformer(), device_map="auto")
