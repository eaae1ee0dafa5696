"""Weights that a conversion changes, folded BatchNorms and edges in 8 bits: nearly the same results, and back to the bit."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

import onespike
from contract.conversion_contract import distance, randomize_, run, same_state, snapshot
from contract.networks import Layers, converted
from onespike import Recipe
from onespike.conversion.weights import fold_, unfold_
from onespike.neurons import EightBit


def network(bias: bool = False) -> nn.Module:
    """A convolution with a foldable norm, and one that is followed by ReLU."""
    layers = {
        "conv1": nn.Conv2d(3, 4, 3, padding=1, bias=bias), "norm1": nn.BatchNorm2d(4), "relu1": nn.ReLU(),
        "conv2": nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=bias), "relu2": nn.ReLU(), "norm2": nn.BatchNorm2d(4),
        "pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "head": nn.Linear(4, 5),
    }  # fmt: skip
    return randomize_(nn.Sequential(OrderedDict(layers)))


def batches() -> list[Tensor]:
    return list(torch.randn(5, 3, 6, 6, generator=torch.Generator().manual_seed(1)).split(3))


def test_a_norm_behind_two_convolutions_is_folded_into_both():
    shared = Layers(
        lambda self, x: (self.norm(self.a(x)) + self.norm(self.b(x)).relu()).mean((-1, -2)),
        a=nn.Conv2d(3, 3, 1), b=nn.Conv2d(3, 3, 1), norm=nn.BatchNorm2d(3),
    )  # fmt: skip
    model = randomize_(shared)
    expected, before = run(model, batches()[0]), snapshot(model)
    folds = onespike.calibrate(model, batches()).folds
    assert folds == {"a": "norm", "b": "norm"}
    fold_(model, folds)
    assert distance(run(model, batches()[0]), expected) < 1e-5
    unfold_(model)
    assert same_state(model, before)


@pytest.mark.parametrize(("bias", "trains"), [(False, True), (True, False)])
def test_folding_changes_nothing_and_is_undone_to_the_bit(bias, trains):
    model = network(bias).requires_grad_(trains)
    original, before, expected = copy.deepcopy(model), snapshot(model), run(model, batches()[0])
    fold_(model, {"conv1": "norm1"})
    assert distance(run(model, batches()[0]), expected) < 1e-5
    assert not torch.equal(model.conv1.weight, original.conv1.weight)
    with torch.no_grad():
        inner = model.conv1(batches()[0])
        assert torch.equal(model.norm1(inner), inner)
        assert distance(inner, original.norm1(original.conv1(batches()[0]))) < 1e-5
    unfold_(model)
    assert torch.equal(run(model, batches()[0]), expected)
    assert same_state(model, before)
    assert (model.conv1.bias is None) == (not bias)
    assert "forward" not in model.norm1.__dict__
    assert {p.requires_grad for p in model.parameters()} == {trains}


def test_a_norm_without_running_statistics_stays():
    model = network()
    model.norm1 = nn.BatchNorm2d(4, track_running_stats=False).eval()
    before, expected = snapshot(model), run(model, batches()[0])
    fold_(model, {"conv1": "norm1"})
    assert same_state(model, before)
    assert torch.equal(run(model, batches()[0]), expected)


@pytest.mark.parametrize(
    ("forward", "folds"),
    [
        (lambda self, x: self.norm(self.conv(x)), {"conv": "norm"}),
        (lambda self, x: self.norm(self.conv(x).relu()), {}),
        (lambda self, x: sum((y := self.conv(x), self.norm(y))), {}),  # its result is also used elsewhere
        (lambda self, x: self.norm(self.conv(x)) + self.norm(x), {}),  # a norm that also reads something else
        (lambda self, x: self.other(self.conv(self.norm(self.conv(x)))), {}),  # a convolution with two norms
    ],
)
def test_a_convolution_and_a_norm_that_have_other_partners_are_not_folded(forward, folds):
    layers = {"conv": nn.Conv2d(3, 3, 1), "norm": nn.BatchNorm2d(3), "other": nn.BatchNorm2d(3)}
    model = randomize_(Layers(lambda self, x: forward(self, x).mean((-1, -2)), **layers))
    assert onespike.discover(model, *batches()).folds == folds
    assert onespike.calibrate(model, batches()).folds == folds


MEAN, STD = (torch.tensor(x).view(3, 1, 1) for x in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
EDGES = Recipe(io="int8")


def pictures(count: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Pixels from 0 to 255, and what a network gets of them."""
    pixels = torch.randint(0, 256, (count, 3, 8, 8), generator=torch.Generator().manual_seed(seed))
    pixels[0, :, 0, :2] = torch.tensor([0, 255])  # black and white in every channel
    return pixels, (pixels / 255 - MEAN) / STD


def seeing() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3, stride=2), nn.GELU(), nn.Flatten(),
        nn.Linear(72, 16), nn.Tanh(), nn.Linear(16, 5),
    ).eval()  # fmt: skip


def places(snn: nn.Module) -> dict[str, nn.Module]:
    return {str(site): place for site, place in onespike.named_neurons(snn)}


def test_pixels_are_exact_and_weights_are_8_bit_integers():
    x = pictures()[1]
    snn = converted(seeing(), x, EDGES)
    first, last = places(snn)["0:conv0_input"], places(snn)["8:linear0_input"]
    assert isinstance(first, EightBit) and isinstance(last, EightBit)
    others, y = pictures(seed=1)
    assert torch.equal(first.spikes(y), others.int())
    assert torch.allclose(first(y), y, atol=1e-6)
    assert last.largest == 127 and last.code().sides == "even"
    for module, units in ((snn[0], first.positive.view(1, 3, 1, 1)), (snn[8], 1.0)):
        rows = (module.weight.detach().double() * units).flatten(1)
        integers = rows / rows.abs().amax(1, keepdim=True) * 127
        assert torch.allclose(integers, integers.round(), atol=1e-3)


def test_the_network_is_near_the_analog_one_and_equal_on_integers():
    x = pictures(16)[1]
    model = seeing()
    analog, edges = (converted(model, x, Recipe(io=io)) for io in ("analog", "int8"))
    assert (edges(x) - analog(x)).abs().mean() < 0.05 * analog(x).std()
    assert torch.equal(onespike.optimize(edges)(x).argmax(1), edges(x).argmax(1))
    assert "integer_conv0_input" in dict(onespike.optimize(edges, integer_units=True)[0].named_children())


def test_revert_restores_every_bit_in_a_copy_too():
    for model, x, recipe in ((network(), batches()[0], Recipe()), (seeing(), pictures()[1], EDGES)):
        snn = onespike.revert_(copy.deepcopy(converted(model, x, recipe)))
        assert same_state(snn, snapshot(model)) and torch.equal(run(snn, x), run(model, x))


def test_a_tied_embedding_stays_tied():
    torch.manual_seed(0)
    layers = {"embedding": nn.Embedding(9, 8), "inner": nn.Linear(8, 8), "head": nn.Linear(8, 9, bias=False)}
    model = Layers(lambda self, words: self.head(torch.relu(self.inner(self.embedding(words)))), **layers)
    model.head.weight = model.embedding.weight
    snn = converted(model, torch.randint(0, 9, (4, 9)), EDGES)
    assert snn.head.weight is snn.embedding.weight
    assert not torch.equal(snn.head.weight, model.head.weight)
    onespike.revert_(snn)
    assert snn.head.weight is snn.embedding.weight and torch.equal(snn.head.weight, model.head.weight)


def test_an_edge_whose_weight_is_no_layers_stays_analog_and_says_so():
    torch.manual_seed(0)
    model = Layers(
        lambda self, x: self.head(torch.relu(self.inner(torch.relu(nn.functional.linear(x, self.weight))))),
        weight=nn.Parameter(torch.randn(6, 4)), inner=nn.Linear(6, 6), head=nn.Linear(6, 3),
    )  # fmt: skip
    snn = converted(model, torch.randn(32, 4), EDGES)
    reason = "not in 8 bits, since its weight is not that of a linear map or convolution"
    assert places(snn)[":linear0_input"].extra_repr() == f"input of the network; {reason}"
    assert isinstance(places(snn)["head:linear0_input"], EightBit)
