"""Integrate-and-fire against a foreign implementation, the one-step neuron against it, and SpikingBrain's coding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from onespike.neurons import Scale
from onespike.neurons.baselines import (
    DualIntegrateFire,
    DualMultiThreshold,
    IntegrateFire,
    MeanFire,
    MultiThreshold,
    Uniform,
    integrate_fire_step,
)  # fmt: skip
from onespike.spikes import mixed_levels


def levels(count: int) -> tuple[int, ...]:
    return tuple(range(1, count + 1))


def integrate_fire(x: Tensor, threshold: float, initial: float) -> tuple[Tensor, Tensor]:
    """Spikes for currents x of shape [T, …], and the membrane v(T): eqs. 1–4 step by step."""
    membrane, spikes = torch.zeros_like(x[0]) + initial, []
    for current in x:
        spike, membrane = integrate_fire_step(current, membrane, threshold)
        spikes.append(spike)
    return torch.stack(spikes), membrane


def test_table_of_equations_1_to_4() -> None:
    x = torch.tensor([[0.75, 0.0], [0.5, 0.25], [0.0, 2.0], [-0.5, 2.0]])
    spikes, membrane = integrate_fire(x, 1.0, 0.25)
    assert spikes.tolist() == [[1, 0], [0, 0], [0, 1], [0, 1]]
    assert membrane.tolist() == [0.0, 2.5]
    spikes, membrane = integrate_fire(torch.tensor([0.5]), 1.0, 0.5)  # at its threshold it fires
    assert (spikes.item(), membrane.item()) == (1.0, 0.0)


@pytest.mark.parametrize("signed", [False, True])
def test_agrees_with_spikingjelly(signed: bool) -> None:
    neuron = pytest.importorskip("spikingjelly.activation_based.neuron", reason="the foreign reference")
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(32, 5, 7, generator=generator) * 0.5 + (0.0 if signed else 0.6)
    theirs = neuron.IFNode(v_threshold=0.8, v_reset=None, step_mode="m")
    theirs.v = torch.full((5, 7), 0.4)
    expected = theirs(x)
    spikes, membrane = integrate_fire(x, 0.8, 0.4)
    assert torch.equal(spikes, expected)
    assert torch.allclose(membrane, theirs.v, atol=1e-6)
    assert 0.05 < spikes.mean() < 0.95


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_modules_are_the_equations_on_a_constant_current(steps: int) -> None:
    x = torch.linspace(-2, 2, 301)
    up, down = (
        integrate_fire((sign * x).clamp(min=0).expand(steps, -1), theta, theta / 2)[0].sum(0)
        for sign, theta in ((1, 0.8), (-1, 0.6))
    )
    assert torch.equal(DualIntegrateFire(0.8, 0.6, levels=levels(steps)).counts(x), up - down)
    assert torch.equal(IntegrateFire(0.8, levels=levels(steps)).counts(x), up)
    multi = [
        ((sign * x + theta / steps / 2) / (theta / steps)).floor().clamp(0, steps)
        for sign, theta in ((1, torch.tensor(0.8)), (-1, torch.tensor(0.6)))
    ]
    counts = DualMultiThreshold(0.8, 0.6, levels=levels(steps)).counts(x)
    assert torch.equal(counts, torch.where(x < 0, 0.0 - multi[1], multi[0]))


@pytest.mark.parametrize("steps", [1, 2, 4, 16])
def test_one_step_equals_many(steps: int) -> None:
    """Theorem 1 on dyadic numbers, which float32 adds without rounding: x on a grid, θ = 1, T a power of two."""
    x = torch.arange(-40, 41) / 32
    many, single = (kind(1.0, levels=levels(steps)) for kind in (IntegrateFire, MultiThreshold))
    assert torch.equal(many(x), single(x))
    both, dual = (kind(1.0, 0.5, levels=levels(steps)) for kind in (DualIntegrateFire, DualMultiThreshold))
    assert torch.equal(both(x), dual(x))
    assert both(x).min() == -0.5


def test_only_the_number_of_levels_counts() -> None:
    x = torch.linspace(0, 2, 101)
    for kind in (IntegrateFire, MultiThreshold):
        plain, other = (
            kind(1.0, levels=mixed_levels(4, 0)),
            kind(1.0, levels=(3, 8, 9, 70), rounding="nearest"),
        )
        assert torch.equal(plain(x), other(x))
        assert (plain.largest, other.largest) == (4, 4)
        assert plain(x).max() == 1.0


@pytest.mark.parametrize(("negative", "number"), [(0.0, 15), (0.5, 7)])
def test_uniform_is_plain_quantization_of_four_bits(negative: float, number: int) -> None:
    cell, x, delta = Uniform(0.75, negative, levels=levels(15)), torch.randn(200), 0.75 / number
    codes = (x / delta).add(0.5 * x.sign()).trunc().clamp(-number if negative else 0, number)
    torch.testing.assert_close(cell(x), codes * delta)


def test_a_row_is_rounded_to_thirds_of_its_own_mean() -> None:
    cell = MeanFire(1.0, 1.0, levels=tuple(range(1, 128)), scale=Scale(1 / 3))
    x = torch.randn(5, 7, 32, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 7)[:, None]
    step = x.abs().mean(-1, keepdim=True) / 3
    assert torch.equal(cell.spikes(x), (x / step).round().clamp(-127, 127).int())
    assert torch.allclose(cell(x), (x / step).round().clamp(-127, 127) * step)
    assert torch.equal(cell(x * 1024), cell(x) * 1024)
    assert not cell(torch.zeros(2, 4)).any()
