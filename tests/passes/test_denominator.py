"""One denominator: budgets, ledgers, presets and pages mean all MACs of the original, with what spikes beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from onespike import Recipe, metered, spike
from onespike.cli.show import spent
from onespike.conversion.network import conversion_of
from onespike.energy.columns import OF_ALL_MACS, beside, of_what_spikes
from onespike.passes.budget import TOLERANCE

PAGES = Path(__file__).parents[2] / "docs"
BUDGET = 0.06


@pytest.fixture(scope="module")
def converted():
    """A network whose output layer has most of its MACs, as that of a small language model, at a budget."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 128)
    ).eval()  # fmt: skip
    x = torch.randn(256, 8)
    snn = spike(model, x.split(32), Recipe(passes=("nearest", "allocate"), budget=BUDGET, energy="binary"))
    with metered(snn) as ledger, torch.inference_mode():
        snn(x)
    return snn, ledger


def test_a_budget_and_the_ledger_mean_all_macs(converted):
    _, ledger = converted
    assert ledger.analog_share > 0.6
    ratio = ledger.ratio("binary")
    assert ratio == pytest.approx(BUDGET, rel=0.1)  # on other inputs than those that it was met on
    assert of_what_spikes("binary", ratio, ledger.analog_share) > 2.5 * BUDGET
    assert of_what_spikes("strict", ledger.ratio("strict"), ledger.analog_share) is None


def test_convert_records_and_prints_both(converted, capsys):
    snn, _ = converted
    conversion = conversion_of(snn)
    thresholds, recipe = conversion.thresholds, conversion.recipe
    energy = thresholds.provenance["energy"]
    assert energy["ratios"]["binary"] <= BUDGET * (1 + 2 * TOLERANCE) and energy["analog_share"] > 0.6

    class Pair:
        loaded = type("Loaded", (), {"task": None})

    Pair.thresholds, Pair.recipe = thresholds, recipe
    spent(Pair)
    printed = capsys.readouterr().out
    assert f"{OF_ALL_MACS}, on the last" in printed and f"; budget binary {BUDGET:g}" in printed
    assert f"binary is {beside('binary', energy['ratios']['binary'], energy['analog_share'])}" in printed


def test_a_missed_budget_names_both():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 64)).eval()
    words = (
        r"is kept, 0\.\d{3} of all MACs of the original \(0\.\d{3} of what spikes\)\. Give a larger budget"
    )
    with pytest.warns(Warning, match=words):
        spike(model, torch.randn(64, 8).split(16), Recipe(passes=("nearest",), budget=1e-5, energy="binary"))
