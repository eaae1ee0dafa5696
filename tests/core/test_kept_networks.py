"""A converted network of any class as a folder, written by `save_pretrained` and `onespike.save`, and back."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import onespike
from onespike.errors import LoadError, UsageError
from onespike.reports.card import write_card


class Own(nn.Module):
    """A CNN with a BatchNorm to fold, a buffer, and a weight that two names share."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 6, 3)
        self.third = nn.Linear(6, 6)
        self.again = self.third
        self.head = nn.Linear(6, 5)
        self.register_buffer("shift", torch.full((1,), 0.25))

    def forward(self, x):
        x = self.second(torch.relu(self.norm(self.first(x)))).relu().mean((2, 3))
        return self.head(self.third(x).relu()) + self.shift


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Own().eval()


@pytest.fixture(scope="module")
def inputs():
    return torch.randn(24, 3, 9, 9, generator=torch.Generator().manual_seed(1)).split(8)


@pytest.mark.parametrize("preset", ["sformer", "fast", "best", "w8aspike", "if", "ecmt"])
def test_there_and_back(model, inputs, tmp_path, preset):
    snn = onespike.spike(model, inputs, preset)
    assert snn.save_pretrained(tmp_path / "kept") == tmp_path / "kept"
    fresh = Own().eval()
    for pair in (
        onespike.load(tmp_path / "kept", fresh),
        onespike.from_pretrained(tmp_path / "kept", Own().eval()),
    ):
        assert torch.equal(pair.snn(inputs[0]), snn(inputs[0]))
        assert torch.equal(pair.ann(inputs[0]), model(inputs[0])) and type(pair.snn) is Own
    assert pair.recipe == onespike.preset(preset)
    again = onespike.save(tmp_path / "again", pair.snn)
    assert torch.equal(onespike.load(again, fresh).snn(inputs[0]), snn(inputs[0]))
    optimized = onespike.optimize(snn) if preset == "fast" else None
    if optimized is not None:
        assert torch.equal(onespike.optimize(pair.snn)(inputs[0]), optimized(inputs[0]))
        with pytest.raises(UsageError, match=r"made for integer inference.*Save the converted network"):
            optimized.save_pretrained(tmp_path / "integers")


def test_timm_builds_the_network_that_a_folder_holds(tmp_path):
    timm = pytest.importorskip("timm")
    Image = pytest.importorskip("PIL.Image")
    x = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    snn = onespike.spike(timm.create_model("test_resnet", num_classes=5).eval(), [x], "sformer")
    folder = snn.save_pretrained(tmp_path / "kept")
    again = timm.create_model(f"local-dir:{folder}").eval()
    transforms = [timm.data.create_transform(**timm.data.resolve_model_data_config(n)) for n in (again, snn)]
    image = Image.effect_mandelbrot((200, 180), (-2, -1, 1, 1), 20).convert("RGB")
    assert torch.equal(transforms[0](image), transforms[1](image))
    assert torch.equal(onespike.from_pretrained(folder, again).snn(x), snn(x))
    other = timm.create_model("test_vit", img_size=32, num_classes=5).eval()
    snn = onespike.spike(other, [x[..., :32, :32]], "sformer")
    assert not (snn.save_pretrained(tmp_path / "other") / "config.json").exists()  # its size is an argument


@pytest.mark.parametrize("verb", [onespike.convert, onespike.convert_])
def test_a_conversion_in_two_calls_can_be_kept_as_well(inputs, tmp_path, verb):
    model = Own().eval()
    snn = verb(model, onespike.calibrate(model, inputs))
    folder = snn.save_pretrained(tmp_path / "kept")
    assert torch.equal(onespike.load(folder, Own().eval()).snn(inputs[0]), snn(inputs[0]))
    assert not hasattr(onespike.revert_(snn), "save_pretrained")


def test_a_neuron_of_one_s_own_is_named_where_it_is_unknown(model, inputs, tmp_path, monkeypatch):
    class Foreign(onespike.NEURONS["sfn"]):
        name = "foreign"

    with monkeypatch.context() as registered:
        registered.setitem(onespike.NEURONS, "foreign", Foreign)
        snn = onespike.spike(model, inputs, "sformer", neuron="foreign")
        snn.save_pretrained(tmp_path / "kept")
        assert onespike.load(tmp_path / "kept", Own()).recipe.neuron == "foreign"
    message = r"kept: its neuron 'foreign' is none of onespike's\. Import the module that registers it first"
    with pytest.raises(LoadError, match=message):
        onespike.load(tmp_path / "kept", Own())


def test_copies_keep_themselves(model, inputs, tmp_path):
    snn = onespike.spike(model, inputs, "sformer")
    for number, other in enumerate((copy.deepcopy(snn), pickle.loads(pickle.dumps(snn)))):
        onespike.set_scale_(other, 0.5)
        folder = other.save_pretrained(tmp_path / str(number))
        assert torch.equal(onespike.load(folder, Own().eval()).snn(inputs[0]), other(inputs[0]))
        assert onespike.load(folder, Own()).recipe.scale == 0.5
    assert onespike.load(snn.save_pretrained(tmp_path / "own"), Own()).recipe.scale == 0.25


def test_networks_that_cannot_be_kept(model, inputs, tmp_path):
    message = r"this Own is not converted, or only a part of a converted network\."
    with pytest.raises(UsageError, match=message):
        onespike.save(tmp_path / "none", model)
    snn = onespike.spike(model, inputs, "sformer")
    with torch.no_grad():
        snn.second.weight[0, 0, 0, 0] += 1
        snn.first.weight.mul_(2)  # its BatchNorm is folded into it: the original's is kept elsewhere
    with pytest.raises(UsageError, match=r"1 tensors changed after the conversion, first\.weight the first"):
        snn.save_pretrained(tmp_path / "changed")
    assert not list(tmp_path.iterdir())


def test_a_folder_without_its_class(model, inputs, tmp_path):
    folder = onespike.spike(model, inputs, "sformer").save_pretrained(tmp_path / "kept")
    message = r"holds the weights of a .*Own without its code\. Give one: onespike\.from_pretrained"
    with pytest.raises(LoadError, match=message):
        onespike.load(folder)
    with pytest.raises(LoadError, match="missing"):
        onespike.load(folder, nn.Linear(2, 2))
    with pytest.raises(UsageError, match="states no preprocessing"):
        onespike.load(folder, Own()).loaded.reading.transform(None)
    write_card(folder, license="mit")
    text = (folder / "README.md").read_text()
    assert 'pair = onespike.from_pretrained(".", model)' in text and "Own, with any weights\n" in text
    assert "Preprocessing: not stated." in text
