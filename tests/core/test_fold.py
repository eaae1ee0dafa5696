"""A folded convolution computes what convolution and BatchNorm computed, and comes back to the bit."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

import onespike
from contract.conversion_contract import distance, randomize_, run, same_state, snapshot
from contract.networks import Layers, counted
from onespike.conversion.weights import fold_, unfold_


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


def test_a_norm_behind_two_convolutions_is_not_folded():
    shared = Layers(
        lambda self, x: (self.norm(self.a(x)) + self.norm(self.b(x)).relu()).mean((-1, -2)),
        a=nn.Conv2d(3, 3, 1), b=nn.Conv2d(3, 3, 1), norm=nn.BatchNorm2d(3),
    )  # fmt: skip
    model = randomize_(shared)
    expected, before = run(model, batches()[0]), snapshot(model)
    fold_(model, onespike.calibrate(model, batches()).folds)
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


def test_the_recipe_decides():
    model = network()
    thresholds = onespike.calibrate(model, batches())
    kept = onespike.convert(model, thresholds, onespike.Recipe(fold_batchnorm=False))
    folded = onespike.convert(model, thresholds)
    assert torch.equal(kept.conv1.weight, model.conv1.weight)
    assert not torch.equal(folded.conv1.weight, model.conv1.weight)
    assert distance(run(kept, batches()[0]), run(folded, batches()[0])) < 0.2
    assert counted(kept, batches()[0]).functions == {"norm": 2 * 3 * 4 * 36}
    assert counted(folded, batches()[0]).functions == {"norm": 3 * 4 * 36}


def test_folded_networks_can_be_reloaded_and_reverted_after_a_copy():
    model = network()
    expected = run(model, batches()[0])
    snn = copy.deepcopy(onespike.convert(model, onespike.calibrate(model, batches())))
    onespike.revert_(snn)
    assert same_state(snn, snapshot(model))
    assert torch.equal(run(snn, batches()[0]), expected)


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
