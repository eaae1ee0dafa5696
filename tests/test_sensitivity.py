"""Sensitivity against gradients taken by hand, and the factors that follow from it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onespike import Recipe, calibrate, convert
from onespike.sensitivity import Sensitivity, factors, sensitivities
from onespike.sites import Site


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).eval()


RECIPE = Recipe(io="spiking")


def test_information_is_the_mean_squared_gradient():
    model, x = network(), torch.randn(32, 4)
    found = sensitivities(model, calibrate(model, [x], RECIPE), RECIPE, [x], seed=3)
    with torch.no_grad():
        hidden = model[:4](x)
        chances = model(x).softmax(-1)
    drawn = torch.multinomial(chances, 1, generator=torch.Generator().manual_seed(3))
    gradient = (nn.functional.one_hot(drawn[:, 0], 3) - chances) @ model[4].weight.detach()
    last = found["4:linear0_input"]
    assert last.information == pytest.approx(float(gradient.double().pow(2).sum()), rel=1e-4)
    assert last.magnitude == pytest.approx(float(hidden.abs().sum()), rel=1e-5)
    assert (last.elements, last.fan_out) == (hidden.numel(), 3.0)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_a_site_that_matters_more_gets_a_finer_step():
    model, x = network(), torch.randn(64, 4)
    thresholds = calibrate(model, [x], RECIPE)
    found = {site: Sensitivity(1, 1.0, 1.0, 1.0) for site in thresholds}
    found["2:linear0_input"] = Sensitivity(1, 1.0, 8.0, 1.0)  # eight times the information: half the step
    steps = {
        site: factor * float(thresholds[site].positive.max().maximum(thresholds[site].negative.max()))
        for site, factor in factors(thresholds, found, kept=1e6)
    }
    assert steps["2:linear0_input"] / steps["4:linear0_input"] == pytest.approx(0.5)


def test_factors_reach_the_neurons_and_keep_their_bounds():
    model, x = network(), torch.randn(64, 4)
    thresholds = calibrate(model, [x], RECIPE)
    found = sensitivities(model, thresholds, RECIPE, [x])
    pairs = factors(thresholds, found, kept=1.5)
    assert all(1 / 1.5 - 1e-9 <= factor <= 1.5 + 1e-9 for _, factor in pairs)
    snn = convert(model, thresholds, RECIPE.replace(factors=pairs))
    for text, factor in pairs:
        site = Site.parse(text)
        neuron = snn.get_submodule(site.owner).neurons[site.key]
        assert float(neuron.positive) == pytest.approx(float(thresholds[text].positive) * factor)
