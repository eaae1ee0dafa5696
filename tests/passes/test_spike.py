"""The whole way in one call: the same network as its three steps, for any preset, and no step left out unnoticed."""

from __future__ import annotations

import pytest
import torch
from small_networks import attention, tokens
from torch.utils.data import DataLoader, TensorDataset

import onespike
from contract.conversion_contract import run
from contract.networks import counted
from onespike import calibrate, convert, preset, spike
from onespike.errors import UsageError
from onespike.passes import improve, statistics
from onespike.presets import PRESETS

QUICK = ("nearest", "layout", "allocate")
PLAIN = [name for name, entry in PRESETS.items() if not {"passes", "fixed"} & set(entry.settings)]


@pytest.mark.parametrize("name", ["best", *sorted(PLAIN)])
def test_it_is_calibration_passes_and_conversion_by_any_preset_and_changes_of_it(name):
    model, inputs, changes = attention(), tokens(), {"exclude": ("blocks.0.*",)}
    if name == "best":
        changes["passes"] = QUICK
    snn, recipe = spike(model, inputs, name, **changes), preset(name, **changes)
    by_hand = convert(model, improve(model, inputs, calibrate(model, inputs, recipe), recipe), recipe)
    assert torch.equal(run(snn, inputs[0]), run(by_hand, inputs[0]))
    assert not any(row["spikes"] for row in onespike.table(snn) if row["site"].startswith("blocks.0."))
    assert type(snn) is type(model) and not hasattr(model.head, "neurons")


def test_the_best_preset_runs_all_of_its_passes(monkeypatch):
    monkeypatch.setattr(statistics, "HELD", 16)
    monkeypatch.setattr("onespike.passes.tune.STEPS", 2)
    model, inputs, stages = attention(), tokens(), []

    def progress(title, total):
        stages.append((title, total))
        return lambda batches: batches

    snn = spike(model, inputs, "best", budget=0.2, energy="counts", progress=progress)
    assert stages[0] == ("calibrating", 6) and ("tuning", 2) in stages
    assert counted(snn, *inputs).ratio("counts") == pytest.approx(0.2, rel=0.05)


def test_an_ordinary_loader_serves_with_passes_too():
    model, inputs = attention(), tokens()
    loader = DataLoader(TensorDataset(torch.cat(inputs), torch.arange(48)), batch_size=16)
    result, expected = (spike(model, batches, passes=QUICK) for batches in (loader, inputs))
    assert torch.equal(run(result, inputs[0]), run(expected, inputs[0]))


def test_passes_that_never_ran_are_refused():
    model, inputs = attention(), tokens()
    recipe = preset("best", passes=QUICK)
    literal = calibrate(model, inputs, recipe)
    message = r"passes nearest, layout, allocate.*onespike\.spike\(model, batches"
    with pytest.raises(UsageError, match=message):
        convert(model, literal, recipe)
    carried = improve(model, inputs, literal, recipe)
    assert carried.passes == QUICK and literal.passes == ()
    with pytest.raises(UsageError, match="passes center, and the thresholds"):
        convert(model, carried, recipe.replace(passes=(*QUICK, "center")))
    convert(model, carried, recipe.replace(scale=0.3))
