"""SpikingBrain's coding: a step for each row, a third of its mean magnitude."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import onespike
from onespike.errors import UsageError
from onespike.neurons import MeanFire, Scale
from onespike.recipe import preset


def cell() -> MeanFire:
    return MeanFire(1.0, 1.0, levels=tuple(range(1, 128)), scale=Scale(1 / 3))


def test_a_row_is_rounded_to_thirds_of_its_own_mean():
    x = torch.randn(5, 7, 32, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 7)[:, None]
    step = x.abs().mean(-1, keepdim=True) / 3
    assert torch.equal(cell().spikes(x), (x / step).round().clamp(-127, 127).int())
    assert torch.allclose(cell()(x), (x / step).round().clamp(-127, 127) * step)
    assert torch.equal(cell()(x * 1024), cell()(x) * 1024)
    assert not cell()(torch.zeros(2, 4)).any()


def test_the_preset_runs_on_integers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
    x = torch.randn(64, 8)
    snn = onespike.spike(model, [x], preset("w8aspike"))
    found = {str(site): neuron for site, neuron in onespike.named_neurons(snn)}
    assert isinstance(found["2:linear0_input"], MeanFire)
    apart = (onespike.optimize(snn)(x) - snn(x)).norm() / snn(x).norm()
    assert 0 < apart < 0.02  # 8-bit weights


def test_no_format_can_write_it():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    snn = onespike.spike(model, [torch.randn(8, 4)], preset("w8aspike"))
    from onespike.deploy.exports.graph import Site

    with pytest.raises(UsageError, match="the neuron 'mean' at x fires by a rule of its own"):
        Site("x", next(n for _, n in onespike.named_neurons(snn) if isinstance(n, MeanFire)), [])
