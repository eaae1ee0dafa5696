"""The one Fisher estimator: against gradients taken by hand, for every form of batch and output, and what follows from it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from small_networks import attention, passed, start, tokens
from torch import nn

import onespike
from contract.networks import Layers, mlp
from onespike import Recipe, calibrate, convert
from onespike.passes import PassContext, PassState, chain
from onespike.passes.budget import spending
from onespike.passes.statistics import divergences, fisher
from onespike.sites import Site

RECIPE = Recipe(io="spiking")
QUICK = ("nearest", "layout", "center", "allocate", "correct", "refit")


def test_information_is_the_mean_squared_gradient():
    model, x = mlp(), torch.randn(32, 4)
    state = PassState(calibrate(model, [x], RECIPE), RECIPE)
    result = fisher(state, PassContext(model, [x], seed=3))[Site.parse("4:linear0_input")]
    with torch.no_grad():
        hidden, chances = model[:4](x), model(x).softmax(-1)
    noise = torch.empty(32, 3).exponential_(generator=torch.Generator().manual_seed(3))
    drawn = (chances / noise).argmax(-1)
    gradient = (nn.functional.one_hot(drawn, 3) - chances) @ model[4].weight.detach()
    assert torch.allclose(result.information.flatten(), gradient.double().pow(2).sum(0), rtol=1e-4)
    assert torch.allclose(result.magnitude.flatten(), hidden.double().abs().sum(0), rtol=1e-5)
    assert (result.elements, result.fan_out) == (32, 3.0)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_factors_of_a_recipe_reach_the_neurons():
    model, x, factors = mlp(), torch.randn(64, 4), {"2:linear0_input": 0.5, "4:linear0_input": 3.0}
    thresholds = calibrate(model, [x], RECIPE)
    snn = convert(model, thresholds, RECIPE.replace(factors=tuple(factors.items())))
    for site, neuron in onespike.named_neurons(snn):
        expected = float(thresholds[site].positive) * factors.get(str(site), 1)
        assert float(neuron.positive) == pytest.approx(expected)


class Named(nn.Module):
    """The attention network with other arguments: tokens in two parts, and a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = attention()

    def forward(self, first, second, twice: bool = False):
        x = torch.cat([first, second], 1)
        return self.inner(torch.cat([x, x], 1) if twice else x)


def of_lists() -> nn.Module:
    """And as a list of images that it stacks by itself."""
    return Layers(lambda self, images: self.inner(torch.stack(images)), inner=attention())


FORMS = {
    "tuple": (Named, lambda x: (x[:, :3], x[:, 3:])),
    "mapping": (Named, lambda x: {"first": x[:, :3], "second": x[:, 3:], "twice": False}),
    "list of images": (of_lists, lambda x: (list(x),)),
}


@pytest.mark.parametrize("form", FORMS)
def test_passes_take_every_form_of_batch(form):
    """The thresholds are those of the network that takes one tensor."""
    kind, made = FORMS[form]
    expected, _ = passed(QUICK, budget=0.3)
    model, batches = kind().eval(), [made(x) for x in tokens()]
    result = chain(*start(model, batches, budget=0.3), QUICK)
    for site, threshold in expected.thresholds.items():
        other = result.thresholds[f"inner.{site}"]
        assert torch.equal(threshold.positive, other.positive), site


def depth() -> nn.Module:
    """A picture for each picture: no classes anywhere, and channels that matter more and less."""
    torch.manual_seed(0)
    inner = [part for _ in range(4) for part in (nn.Conv2d(8, 8, 3, padding=1), nn.GELU())]
    net = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.GELU(), *inner, nn.Conv2d(8, 1, 3, padding=1))
    for part in net[::2]:
        part.weight.data *= 3 * torch.logspace(-1, 0.5, part.in_channels).view(1, -1, 1, 1)
    return Layers(lambda self, x: {"depth": self.net(x)}, net=net).eval()


def test_passes_improve_a_network_of_which_nothing_is_known():
    model = depth()
    x = torch.randn(64, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    batches, others = x[:48].split(8), x[48:].split(8)
    state, context = start(model, batches)
    context = dataclasses.replace(context, budget=spending(state, context))
    after, before = divergences([chain(state, context, QUICK), state], context, others).sum(1)
    assert after < 0.5 * before


def test_pictures_of_several_sizes_are_sampled_at_evenly_spaced_places():
    torch.manual_seed(0)
    batches = [torch.randn(16, 2, *size) for size in ((8, 8), (8, 12), (16, 8))]
    state, context = start(depth(), batches, budget=0.3)
    result = chain(state, context, QUICK)
    assert spending(result, context) == pytest.approx(0.3, rel=0.02)
    for part in batches:
        assert result.network(context.model)(part)["depth"].shape == (16, 1, *part.shape[2:])
