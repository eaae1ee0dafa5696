"""What errors do together: against a sum by hand, and at equal energy."""

from __future__ import annotations

from math import log

import pytest
import torch
from small_networks import divergence, start
from torch import nn

from contract.networks import Layers
from onespike import runs
from onespike.adapters import load_model
from onespike.passes import PASSES, chain
from onespike.passes.allocate import DOUBT, FACTORS, Curve, Together, coherence, weighted
from onespike.passes.budget import spending
from onespike.sites import Site
from onespike.tasks import limit

FAST = ("nearest", "layout", "center", "allocate")


def test_sums_are_those_by_hand():
    effect, row = torch.tensor([[1.0, 2.0, -1.0], [3.0, 0.0, 1.0]]), Together()
    row.add(2, effect)
    assert float(row.joint[2]) == 2**2 + 4**2 and float(row.apart[2]) == 6 + 10
    inputs = 16**2 / (6**2 + 10**2)
    assert float(row.ratio()[2]) == pytest.approx((20 / 16) ** (inputs / (inputs + DOUBT)))
    assert not row.joint[0]
    row.add(0, torch.tensor([1.0, 2.0]))  # an input without a batch
    assert float(row.joint[0]) == 9 and float(row.apart[0]) == 5


def test_gradients_meet_errors_at_every_site():
    """Σ J·e by automatic differentiation along the error itself."""
    torch.manual_seed(3)
    model = Layers(  # tokens that are averaged in the end, so that errors of one sign add up
        lambda self, x: self.head(self.out(self.hidden(self.embed(x).relu()).relu()).relu().mean(1)) * 6,
        embed=nn.Linear(6, 24), hidden=nn.Linear(24, 24), out=nn.Linear(24, 24), head=nn.Linear(24, 5),
    ).eval()  # fmt: skip
    inputs = torch.randn(8, 32, 6).split(4)
    state, context = start(model, list(inputs), budget=0.2)
    site = Site.parse("out:linear0_input")
    result = coherence(state, context)[site]
    generator = torch.Generator().manual_seed(2)
    drawing = context.task.drawing(4, generator)
    snn = state.network(model)
    neuron = snn.out.neurons["linear0_input"]
    joint = torch.zeros(len(FACTORS)).double()
    for batch in inputs:
        x = model.hidden(model.embed(batch).relu()).relu().detach().requires_grad_()
        drawing(model.head(model.out(x).relu().mean(1)) * 6, torch.arange(4)).backward()
        for i, factor in enumerate(FACTORS):
            larger = {"positive": neuron.positive * factor, "negative": neuron.negative * factor}
            e = neuron._with(larger)(x.detach()) - x.detach()
            joint[i] += (x.grad * e).flatten(1).sum(1).double().square().sum()
        if batch is inputs[0]:
            drawing = context.task.drawing(4, generator)
    assert torch.allclose(result.joint, joint, rtol=1e-4)


def test_a_curve_is_weighted_by_its_steps():
    steps = torch.tensor([[1.0], [2.0], [4.0], [64.0]])
    curve = Curve((1, 2), steps, torch.ones(4, 1), torch.ones(4, 1), True)
    ratio = torch.tensor([1.0, 1.0, 2.0, 8.0, 32.0]).double()
    result = weighted(curve, torch.tensor([log(2.0)]), ratio).loss.flatten()
    assert torch.allclose(result, torch.tensor([1.0, 2.0, 8.0, 32.0]))  # ½, 1, 2 and beyond 4 times the step
    between = weighted(curve, torch.tensor([log(2.0) + log(2) / 2]), ratio).loss.flatten()
    assert float(between[1]) == pytest.approx(2**0.5)


def test_a_trained_transformer_at_equal_energy():
    """The bundled vision transformer averages its tokens, and its last layers' errors have one sign in many of them."""
    loaded = load_model("bundled:cifar10-vit")
    every = list(runs.Inputs(limit(runs.choose("bundled:cifar10-calibration", None), 160), loaded))
    inputs, others = every[:12], every[12:]
    model = loaded.model.eval()
    state, context = start(model, inputs, budget=0.1)
    plain = chain(state, context, FAST)
    better = PASSES["weigh"].run(plain, context)
    assert divergence(model, better, others) < 0.7 * divergence(model, plain, others)
    assert spending(better, context) == pytest.approx(spending(plain, context), rel=0.02)
