"""Passes on the bundled detector: nearer to the original than the literal method at the same energy."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from onespike import calibrate, preset, runs
from onespike.adapters import load_model
from onespike.passes import PassContext, PassState, chain
from onespike.passes.budget import spending
from onespike.passes.statistics import divergences, fisher

QUICK = ("nearest", "layout", "center", "allocate", "correct")


@pytest.fixture(scope="module")
def scenes() -> tuple[PassState, PassContext, list[torch.Tensor]]:
    """The literal method on a few scenes, and others to judge by."""
    loaded = load_model("bundled:scenes")
    inputs, others = (
        [x for x, _ in loaded.batches(runs.choose(f"bundled:scenes-{name}", 24, loaded.task), 8)]
        for name in ("calibration", "test")
    )
    recipe = preset("sformer")
    state = PassState(calibrate(loaded.model, inputs, recipe), recipe)
    context = PassContext(loaded.model, inputs, task=loaded.task)
    return state, dataclasses.replace(context, budget=spending(state, context)), others


def test_passes_are_nearer_at_the_same_energy(scenes):
    state, context, others = scenes
    better = chain(state, context, QUICK)
    assert spending(better, context) == pytest.approx(context.budget, rel=0.02)
    after, before = divergences([better, state], context, others).sum(1)
    assert after < 0.7 * before


def test_a_draw_of_objects_reaches_every_site(scenes):
    state, context, _ = scenes
    for site, row in fisher(state, context).items():
        assert bool(row.information.isfinite().all()) and bool((row.information > 0).any()), site


def test_tuning_a_detector_lowers_its_divergence_on_held_out_scenes(scenes, monkeypatch):
    import importlib

    monkeypatch.setattr(importlib.import_module("onespike.passes.tune"), "STEPS", 20)
    state, context, _ = scenes
    start = chain(state, context, ("nearest", "allocate"))
    tuned = chain(state, context, ("nearest", "allocate", "tune"))
    held = [context.inputs[-1]]
    after, before = divergences([tuned, start], context, held).sum(1)
    assert after <= 1.05 * before  # what is clearly worse is undone
