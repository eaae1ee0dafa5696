"""The least energy within a loss, budgets with a margin and of all MACs, and the default preset."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_networks import attention, passed, ready, tokens
from torch import nn

from contract.networks import counted
from onespike import preset, spike
from onespike.cli.show import spent
from onespike.conversion.network import conversion_of
from onespike.energy.columns import OF_ALL_MACS, beside, of_what_spikes
from onespike.errors import OnespikeError, OnespikeWarning, UsageError
from onespike.passes import budget as goals
from onespike.passes import improve, statistics
from onespike.passes.budget import TOLERANCE, Spent, by_labels, fit, measured, spending
from onespike.presets import DEFAULT, PRESETS
from onespike.recipe import Recipe
from onespike.tasks import Inferred

QUICK = ("nearest", "layout", "allocate")


@pytest.fixture(autouse=True)
def few_held(monkeypatch):
    monkeypatch.setattr(statistics, "HELD", 16)


@cache
def improved(most: float, budget: float | None = None) -> dict[str, Any]:
    state, context = ready(96)
    recipe = preset("sformer", passes=QUICK, budget=budget, max_drop=most)
    return improve(context.model, context.inputs, state.thresholds, recipe).provenance


def test_it_is_the_least_energy_of_those_tried_that_stays_within():
    result = improved(0.02)
    loss, tried = result["loss"], result["loss"]["tried"]
    good = [one["budget"] for one in tried if one["drop"] + one["error"] <= 0.02]
    assert len(tried) >= 3 and good and loss["drop"] + loss["error"] <= 0.02
    assert loss["drop"] == next(one["drop"] for one in tried if one["budget"] == min(good))
    assert 0 <= loss["agreement"] <= 1 and loss["kl"] > 0 and loss["inputs"] == 16
    ratio = result["energy"]["ratios"]["counts"]
    assert ratio * (1 + result["energy"]["relative_error"]) == pytest.approx(min(good), rel=0.02)
    assert improved(0.005)["energy"]["ratios"]["counts"] > ratio  # a smaller loss costs more


def test_a_budget_is_the_most_and_less_is_taken_where_the_loss_allows_it():
    enough, scarce = improved(0.1, budget=0.3), improved(1e-9, budget=0.1)
    tried = enough["loss"]["tried"]
    assert tried[0]["budget"] == 0.3 and len(tried) <= 3
    assert enough["loss"]["drop"] + enough["loss"]["error"] <= 0.1
    assert enough["energy"]["ratios"]["counts"] < 0.25
    assert len(scarce["loss"]["tried"]) == 1  # kept, without a warning


def test_the_first_budget_is_kept_without_another_run_of_the_passes(monkeypatch):
    monkeypatch.setattr(goals, "fit", lambda state, context, goal: state)
    (state, context), losses, budgets = ready(96, budget=0.2), iter((0.0, 1.0, 1.0)), []

    def run(state, context):
        budgets.append(context.budget)
        return state

    judge = lambda snn: goals.Loss(next(losses), 0.0, 1, "accuracy")  # noqa: E731
    assert goals.least_energy(state, context, run, 0.5, judge)[0] == 0.2
    assert budgets == [0.2, 0.2 * goals.DOWN]


def test_whoever_names_one_goal_does_not_get_the_other():
    goals = [
        (recipe.budget, recipe.max_drop)
        for recipe in (preset("fast"), preset("fast", budget=0.1), preset("fast", max_drop=0.1))
    ]
    assert goals == [(0.2, 0.005), (0.1, None), (None, 0.1)]
    both = preset("fast", budget=0.1, max_drop=0.1)
    assert (both.budget, both.max_drop) == (0.1, 0.1)


def test_a_loss_that_no_energy_keeps_is_said(monkeypatch):
    monkeypatch.setattr(goals, "MOST", 0.25)
    with pytest.warns(OnespikeWarning, match=r"no energy that was tried stays within a loss of 1e-07 %"):
        loss = improved(1e-9)["loss"]
    assert loss["drop"] == min(one["drop"] for one in loss["tried"])


def test_labels_judge_by_accuracy():
    model, inputs = attention(), tokens(96)
    with torch.inference_mode():
        labels = [model(x).argmax(-1) for x in inputs]
        labels[0][:8] = (labels[0][:8] + 1) % 5
    labeled = list(zip(inputs, labels, strict=True))
    judge, snn = by_labels(model, labeled, Inferred()), spike(model, inputs, "sformer", scale=0.9)
    with torch.inference_mode():
        before, after = (
            torch.cat([(net(x).argmax(-1) == y).double() for x, y in labeled]) for net in (model, snn)
        )
    loss = judge(snn)
    assert loss.drop == pytest.approx(float((before - after).mean())) and loss.drop > 0
    assert loss.error == pytest.approx(float((before - after).std() / 96**0.5))
    result = spike(model, inputs, passes=QUICK, energy="counts", max_drop=0.05, validation=labeled)
    assert judge(result).within(0.05)


def test_a_budget_is_held_with_its_standard_error():
    state, context = ready(96, budget=0.3)
    result = measured(fit(state, context, 0.3), context)
    assert result.error > 0 and result.ledger.ratio("counts") < 0.3
    assert result.most("counts") == pytest.approx(0.3, rel=0.006)
    assert Spent(result.ledger, 0.0).most("counts") == result.ledger.ratio("counts")


def test_a_budget_that_cannot_be_met_keeps_the_nearest_and_says_what_was_tried():
    state, context = ready(budget=1e-4)
    recipe = preset("sformer", passes=("nearest",), budget=1e-4)
    message = (
        r"budget 0\.0001 \(counts\) is not met; steps of several sizes gave .*"
        r"is kept, 0\.\d{3} of all MACs of the original \(0\.\d{3} of what spikes\)\. Give a larger budget"
    )
    with pytest.warns(OnespikeWarning, match=message):
        thresholds = improve(context.model, context.inputs, state.thresholds, recipe)
    nearest = spending(fit(state, context, 1e-4), context)
    assert min(context.memory.tried) == nearest
    assert thresholds.provenance["energy"]["inputs"] == 32


def test_the_default_is_passes_within_goals_and_the_paper_stays_exact():
    assert DEFAULT == "fast" and "tune" not in PRESETS[DEFAULT].settings["passes"]
    assert Recipe().preset == "sformer" and Recipe().passes == ()
    inputs = tokens()
    snn = spike(attention(), inputs, energy="counts")
    assert 0.01 < counted(snn, *inputs).ratio("counts") < 0.2 * 1.08


def test_a_budget_at_which_nothing_fires():
    result, context = passed(("nearest", "allocate"), budget=1e-9)
    assert spending(result, context) < 1e-3


def test_validation_data_of_another_kind():
    model, inputs = attention(), tokens(8)
    for labels, message in (
        (None, "these labels do not say whether an answer is right. Leave the validation data out."),
        (torch.full((len(inputs[0]),), 1000), "the data has label 1000, and the network has 5 classes"),
    ):
        with pytest.raises(OnespikeError, match=message):
            spike(model, inputs, passes=QUICK, max_drop=0.05, validation=[(inputs[0], labels)])
    with pytest.raises(UsageError, match=r"^validation judges max_drop, and there is none"):
        spike(model, inputs, budget=0.2, validation=[])


def test_a_budget_the_ledger_and_what_is_printed_mean_all_macs(capsys):
    """In a network whose output layer has most of its MACs, as that of a small language model."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 128)
    ).eval()  # fmt: skip
    x, budget = torch.randn(256, 8), 0.06
    recipe = Recipe(passes=("nearest", "allocate"), budget=budget, energy="binary")
    snn = spike(model, x.split(32), recipe)
    ledger = counted(snn, x)
    assert ledger.analog_share > 0.6
    ratio = ledger.ratio("binary")
    assert ratio == pytest.approx(budget, rel=0.1)  # on other inputs than those that it was met on
    assert of_what_spikes("binary", ratio, ledger.analog_share) > 2.5 * budget
    assert of_what_spikes("strict", ledger.ratio("strict"), ledger.analog_share) is None
    thresholds = conversion_of(snn).thresholds
    energy = thresholds.provenance["energy"]
    assert energy["ratios"]["binary"] <= budget * (1 + 2 * TOLERANCE) and energy["analog_share"] > 0.6
    spent(SimpleNamespace(thresholds=thresholds, recipe=recipe, loaded=SimpleNamespace(task=None)))
    printed = capsys.readouterr().out
    assert f"{OF_ALL_MACS}, on the last" in printed and "; budget binary 0.06" in printed
    assert f"binary is {beside('binary', energy['ratios']['binary'], energy['analog_share'])}" in printed
