"""Tuning: its gradients, that it does not harm, and that it resumes where it stood."""

from __future__ import annotations

import dataclasses
import importlib

import pytest
import torch
from small_networks import attention, start, tokens

from onespike.energy import READINGS
from onespike.errors import UsageError
from onespike.passes import chain, statistics
from onespike.passes.budget import spending
from onespike.spikes import SpikeCode, fire_function

tuning = importlib.import_module("onespike.passes.tune")
ALL = ("nearest", "layout", "positions", "center", "allocate")


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(tuning, "STEPS", 30)
    monkeypatch.setattr(tuning, "EVERY", 10)
    monkeypatch.setattr(tuning, "HOPELESS", 4)  # all steps, whatever they gain
    monkeypatch.setattr(statistics, "HELD", 16)


def site(levels=(1, 2, 3), column="counts", drives=True):
    return tuning.Learned(
        SpikeCode(tuning.ONE, tuning.ONE, fire_function(levels, "nearest")), READINGS[column], drives, 2.0
    )


def test_gradients_by_hand():
    """Inside the range x passes straight through and a step learns y − a; a clipped value moves with the step alone."""
    x = torch.tensor([0.7, -1.2, 9.0], requires_grad=True)
    log_step, center, offset = (torch.zeros((), requires_grad=True) for _ in range(3))
    value, cost = tuning.fired(x, tuning.Constants(log_step, center, offset, torch.ones(())), site())
    assert value.tolist() == [1.0, -1.0, 3.0] and float(cost.detach()) == 2 * (1 + 1 + 3)
    value.sum().backward(retain_graph=True)
    assert x.grad.tolist() == [1, 1, 0]
    assert log_step.grad.item() == pytest.approx((1 - 0.7) + (-1 + 1.2) + 3)
    assert (center.grad.item(), offset.grad.item()) == (-2, 3)
    log_step.grad = None
    cost.backward()
    assert log_step.grad.item() == -10


def test_the_learner_starts_as_the_converted_network():
    model, inputs = attention(), tokens()
    state, given = start(model, inputs, budget=0.3)
    state = chain(state, given, ALL)
    learner = tuning.Learner(state, "counts")
    again = learner.state(state)
    for name, threshold in state.spiking.items():
        found = again.thresholds[name]
        assert torch.allclose(found.positive, threshold.positive, rtol=1e-5)
        assert threshold.center is None or torch.equal(found.offset, threshold.center)


def test_tuning_keeps_the_budget_and_does_not_harm(short):
    model, inputs = attention(), tokens(96)
    state, given = start(model, inputs, budget=0.2)
    before = chain(state, given, ALL)
    training = tuning.Training(tuning.Learner(before, "counts"), before, given, 0.2)
    first = training._judge()
    training.run()
    assert training.best_loss <= first and training.step == 30
    after = tuning.tune(before, given)
    assert spending(after, given) == pytest.approx(0.2, rel=0.011)


def test_an_interrupted_tuning_resumes_to_the_same_result(short, tmp_path, monkeypatch):
    model, inputs = attention(), tokens(64)
    state, given = start(model, inputs, budget=0.25)
    state = chain(state, given, ALL)
    whole = tuning.tune(state, given)
    given = dataclasses.replace(given, folder=tmp_path / "work")

    def stop(self):
        if self.step == 17:
            raise KeyboardInterrupt
        return step(self)

    step = tuning.Training._step
    monkeypatch.setattr(tuning.Training, "_step", stop)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(state, given)
    assert [file.name for file in (tmp_path / "work").iterdir()] == [tuning.FILE]
    monkeypatch.setattr(tuning.Training, "_step", step)
    resumed = tuning.tune(state, given)
    for name, threshold in whole.thresholds.items():
        assert torch.equal(threshold.positive, resumed.thresholds[name].positive)


def test_one_input_is_too_few():
    model, inputs = attention(), tokens(1)
    state, given = start(model, inputs, budget=0.3)
    state = chain(state, given, ALL)
    with pytest.raises(UsageError, match="two calibration inputs"):
        tuning.tune(state, given)
