"""Integrate-and-fire against a foreign implementation, and the one-step neuron against it."""

from __future__ import annotations

import pytest
import torch

from onespike.neurons import (
    DualIntegrateFire,
    DualMultiThreshold,
    IntegrateFire,
    MultiThreshold,
    dual_integrate_fire,
    dual_multi_threshold,
    integrate_fire,
    linear_levels,
    multi_threshold,
)


def levels(count: int) -> tuple[int, ...]:
    return tuple(range(1, count + 1))


def test_table_of_equations_1_to_4() -> None:
    x = torch.tensor([[0.75, 0.0], [0.5, 0.25], [0.0, 2.0], [-0.5, 2.0]])
    spikes, membrane = integrate_fire(x, 1.0, 0.25)
    assert spikes.tolist() == [[1, 0], [0, 0], [0, 1], [0, 1]]
    assert membrane.tolist() == [0.0, 2.5]


def test_a_neuron_at_its_threshold_fires() -> None:
    spikes, membrane = integrate_fire(torch.tensor([0.5]), 1.0, 0.5)
    assert (spikes.item(), membrane.item()) == (1.0, 0.0)


def test_both_branches_may_fire_in_one_step() -> None:
    """The positive branch still works off 3.0 when the current turns negative."""
    up, down = dual_integrate_fire(torch.tensor([3.0, -2.0]), 1.0, 2.0, 0.0, 0.0)
    assert (up[0].tolist(), down[0].tolist()) == ([1, 1], [0, 1])
    assert (up[1].item(), down[1].item()) == (1.0, 0.0)


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
def test_modules_are_the_functions_on_a_constant_current(steps: int) -> None:
    x = torch.linspace(-2, 2, 301)
    up, down = dual_integrate_fire(x.expand(steps, -1), 0.8, 0.6, 0.4, 0.3)
    cell = DualIntegrateFire(0.8, 0.6, levels=levels(steps))
    assert torch.equal(cell.counts(x), up[0].sum(0) - down[0].sum(0))
    assert torch.equal(IntegrateFire(0.8, levels=levels(steps)).counts(x), up[0].sum(0))
    multi = dual_multi_threshold(
        x,
        torch.tensor(0.8) / steps,
        torch.tensor(0.6) / steps,
        torch.tensor(0.8) / steps / 2,
        torch.tensor(0.6) / steps / 2,
        steps,
    )
    assert torch.equal(DualMultiThreshold(0.8, 0.6, levels=levels(steps)).counts(x), multi)


def test_table_of_equation_6() -> None:
    h = torch.tensor([-1.0, 0.0, 0.249, 0.25, 0.5, 0.99, 1.0, 50.0, torch.nan])
    assert multi_threshold(h, 0.25, 4)[:-1].tolist() == [0, 0, 0, 1, 2, 3, 4, 4]
    assert multi_threshold(h, 0.25, 4)[-1].isnan()


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
        plain, other = kind(1.0, levels=linear_levels(2)), kind(1.0, levels=(3, 8, 9, 70), rounding="nearest")
        assert torch.equal(plain(x), other(x))
        assert (plain.largest, other.largest) == (4, 4)
        assert plain(x).max() == 1.0
