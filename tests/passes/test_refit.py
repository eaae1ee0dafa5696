"""Pass `refit`: weights of linear maps and convolutions against a least-squares solver, and what is kept of them."""

from __future__ import annotations

import pytest
import torch
from small_networks import ALL, divergence, passed, start, tokens
from torch import nn

from onespike import convert, revert_
from onespike.passes import chain
from onespike.passes.budget import spending
from onespike.passes.correct import RIDGE, Moments, is_fitted, rows_of

CONVOLUTION = ("nearest", "layout", "center", "allocate")


def test_refitted_weights_are_the_ridge_solution():
    """Against a least-squares solver on the rows themselves: weights, bias and ridge as more rows."""
    torch.manual_seed(0)
    rows, weight = torch.randn(200, 6).double(), torch.randn(4, 6).double()
    value, importance = (rows * 2).round() / 2 + 0.1, torch.rand(200, 1).double()
    sums = Moments(1, 6, rows)
    for part in (slice(0, 80), slice(80, 200)):
        sums.add(value[None, part], (rows - value)[None, part], importance[part])
    result = sums.change(weight).double()
    mean = (importance * value).sum(0) / importance.sum()
    ridge = RIDGE * (importance * (value - mean) ** 2).sum(0).mean()
    unknowns = torch.cat((value, torch.ones(200, 1)), 1) * importance.sqrt()
    wanted = (rows - value) @ weight.T * importance.sqrt()
    penalty = torch.eye(6, 7).double() * ridge.sqrt()
    wanted = torch.cat((wanted, torch.zeros(6, 4)))
    expected = torch.linalg.lstsq(torch.cat((unknowns, penalty)), wanted).solution
    assert torch.allclose(result, expected.T, atol=1e-5)


@pytest.mark.parametrize("rows", [torch.zeros(1, 3, 2), torch.ones(1, 3, 2), torch.zeros(1, 0, 2)])
def test_rows_that_say_nothing_change_no_weight(rows):
    moments = Moments(1, 2, rows)
    moments.add(rows, 0 * rows, torch.ones(rows.shape[1], 1))
    assert not moments.change(torch.randn(4, 2)).any()


def test_refit_keeps_the_budget_and_lowers_the_divergence_on_other_inputs():
    (plain, context), (fitted, _) = (passed(names, 128, budget=0.08) for names in (ALL, (*ALL, "refit")))
    model = context.model
    assert spending(fitted, context) == pytest.approx(0.08, rel=0.011)
    others = tokens(128, seed=9)
    assert divergence(model, fitted, others) < 0.8 * divergence(model, plain, others)
    changed = {site for site, t in fitted.thresholds.items() if t.change is not None}
    assert "blocks.0.fc2:linear0_input" in map(str, changed)
    assert all(site.key == "linear0_input" for site in changed)


def test_a_refitted_network_goes_back_to_its_own_weights():
    fitted, context = passed((*ALL, "refit"), 128, budget=0.08)
    model, snn = context.model, fitted.network(context.model)
    name = "blocks.0.fc2.weight"
    assert not torch.equal(snn.state_dict()[name], model.state_dict()[name])
    assert "re-fitted to spikes" in repr(snn.get_submodule("blocks.0.fc2"))
    revert_(snn)
    assert all(torch.equal(snn.state_dict()[n], value) for n, value in model.state_dict().items())
    excluded = fitted.recipe.replace(exclude=("blocks.0.fc2:*",))
    original = convert(model, fitted.thresholds, excluded)
    assert torch.equal(original.state_dict()[name], model.state_dict()[name])


CONVOLUTIONS = {
    "dense": nn.Conv2d(4, 6, 3, padding=1),
    "pointwise": nn.Conv2d(4, 6, 1, stride=2),
    "depthwise": nn.Conv2d(4, 4, 3, padding=1, groups=4),
    "dilated": nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_the_rows_of_a_convolution_give_its_outputs(kind):
    module, x = CONVOLUTIONS[kind], torch.randn(2, 4, 7, 5)
    rows = rows_of(module, torch.stack((x, -x)), torch.Generator().manual_seed(0))
    weight = module.weight.reshape(module.groups, -1, rows.shape[-1])
    result = (rows[0] @ weight.mT).transpose(0, 1).flatten(1) + module.bias
    wanted = module(x).movedim(1, -1).flatten(0, 2)
    assert torch.equal(rows[1], -rows[0])
    for output in (result, wanted):  # places are shuffled
        assert len(output) == module(x)[:, 0].numel()
    assert torch.allclose(result.sort(0).values, wanted.sort(0).values, atol=1e-5)


def pixels(count: int, seed: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randn(count, 2, 6, 6, generator=generator).split(16))


def normalized() -> nn.Module:
    """Dense, depthwise and pointwise convolutions with BatchNorm, as mobile networks have them."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5),
    )  # fmt: skip
    with torch.no_grad():
        for _ in range(20):
            model(torch.randn(64, 2, 6, 6))
        model[-1].weight *= 4
    return model.eval()


def test_convolutions_are_refitted_after_their_batchnorm_and_go_back():
    model = normalized()
    state, context = start(model, pixels(192), budget=0.05)
    plain, fitted = (chain(state, context, names) for names in (CONVOLUTION, (*CONVOLUTION, "refit")))
    others = pixels(192, seed=9)
    assert divergence(model, fitted, others) < 0.8 * divergence(model, plain, others)
    changed = {site.owner for site, t in fitted.thresholds.items() if t.change is not None}
    assert {"3", "6"} <= changed
    snn = fitted.network(model)
    assert "BatchNorm merged into the weights, re-fitted to spikes" in repr(snn[3])
    revert_(snn)
    assert all(torch.equal(snn.state_dict()[n], value) for n, value in model.state_dict().items())


def test_convolutions_that_are_too_wide_or_pad_otherwise_keep_their_weights():
    others = (
        nn.Conv2d(2, 4, 3, padding="same"),
        nn.Conv2d(2, 4, 3, padding_mode="reflect"),
        nn.Conv1d(2, 4, 3),
    )
    assert not any(map(is_fitted, (nn.Conv2d(256, 8, 3), *others, nn.ReLU())))
    assert is_fitted(nn.Conv2d(128, 8, 3)) and is_fitted(nn.Linear(2, 2))
