"""Tuning: its gradients, that it does not harm, and that it resumes where it stood."""

from __future__ import annotations

import dataclasses
import importlib

import pytest
import torch
from small_networks import passed, ready

from onespike.errors import LoadError, UsageError
from onespike.passes import statistics
from onespike.passes.budget import spending

tuning = importlib.import_module("onespike.passes.tune")


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(tuning, "STEPS", 30)
    monkeypatch.setattr(tuning, "EVERY", 10)
    monkeypatch.setattr(tuning, "HOPELESS", 4)  # all steps, whatever they gain
    monkeypatch.setattr(statistics, "HELD", 16)


def test_gradients_by_hand():
    """Inside the range x passes straight through and a step learns y − a; a clipped value moves with the step alone."""
    state, _ = ready()
    step = torch.ones(()) / state.recipe.scale
    threshold = dataclasses.replace(
        state.thresholds["blocks.0.fc1:linear0_input"], positive=step, negative=step, levels=(1, 2, 3), center=torch.zeros(())
    )  # fmt: skip
    state = state.with_sites({threshold.site: dataclasses.asdict(threshold)})
    site, x = (
        tuning.LearnedSite(threshold, state, "counts"),
        torch.tensor([0.7, -1.2, 9.0], requires_grad=True),
    )
    site.fan_out = 2.0
    value, cost = site(x)
    assert value.tolist() == [1.0, -1.0, 3.0] and float(cost.detach()) == 2 * (1 + 1 + 3)
    value.sum().backward(retain_graph=True)
    assert x.grad.tolist() == [1, 1, 0]
    assert site.step.grad.item() == pytest.approx((1 - 0.7) + (-1 + 1.2) + 3)
    assert (site.center.grad.item(), site.offset.grad.item()) == (-2, 3)
    site.step.grad = None
    cost.backward()
    assert site.step.grad.item() == -10


def test_the_learner_starts_as_the_converted_network():
    state, context = passed(budget=0.15)
    again = tuning.Training(state, context, 0.15).learned()
    for name, threshold in state.spiking.items():
        result = again.thresholds[name]
        assert torch.allclose(result.positive, threshold.positive, rtol=1e-5)
        assert threshold.center is None or torch.equal(result.offset, threshold.center)


def test_tuning_keeps_the_budget_and_does_not_harm(short):
    before, context = passed(budget=0.2)
    training = tuning.Training(before, context, 0.2)
    first = training._judge()
    training.run()
    assert training.best_loss <= first and training.step == 30
    after = tuning.tune(before, context)
    assert spending(after, context) == pytest.approx(0.2, rel=0.011)


def test_an_interrupted_tuning_resumes_to_the_same_result(short, tmp_path, monkeypatch):
    state, context = passed(budget=0.2)
    whole = tuning.tune(state, context)
    context = dataclasses.replace(context, folder=tmp_path / "work")

    def stop(self):
        if self.step == 17:
            raise KeyboardInterrupt
        return step(self)

    step = tuning.Training._step
    monkeypatch.setattr(tuning.Training, "_step", stop)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(state, context)
    assert [file.name for file in (tmp_path / "work").iterdir()] == [tuning.FILE]
    monkeypatch.setattr(tuning.Training, "_step", step)
    file = tmp_path / "work" / tuning.FILE
    whole_file = file.read_bytes()
    for damaged in (whole_file[:-1] + b"?", whole_file[:20]):
        file.write_bytes(damaged)
        with pytest.raises(LoadError, match=r"SHA-256 differs.*Remove it to begin the tuning anew"):
            tuning.tune(state, context)
    file.write_bytes(whole_file)
    resumed = tuning.tune(state, context)
    for name, threshold in whole.thresholds.items():
        assert torch.equal(threshold.positive, resumed.thresholds[name].positive)


def test_one_input_is_too_few():
    state, _ = passed(budget=0.15)
    with pytest.raises(UsageError, match="two calibration inputs"):
        tuning.tune(state, ready(1, budget=0.3)[1])
