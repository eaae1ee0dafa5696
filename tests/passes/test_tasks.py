"""Passes on networks that read text and on the bundled detector: every one runs, and what is tuned never ends worse."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from language_folders import bert, llama, text
from onespike import calibrate, preset, runs
from onespike.adapters import load_model
from onespike.passes import PASSES, PassContext, PassState, chain
from onespike.passes.budget import spending
from onespike.passes.statistics import divergences, fisher
from onespike.presets import FAST


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    return text(tmp_path_factory.mktemp("text") / "story.txt", 0, 127)


@pytest.mark.parametrize("make", [llama, bert])
def test_every_pass_runs_and_the_budget_is_met(make, story, tmp_path, monkeypatch):
    monkeypatch.setattr("onespike.passes.tune.STEPS", 1)
    monkeypatch.setattr("onespike.passes.tune.EVERY", 1)
    monkeypatch.setattr("onespike.passes.statistics.SAMPLES", 2**10)
    loaded = load_model(f"transformers:{make(tmp_path / 'network')}", pretrained=True).with_length(16)
    items = runs.choose(str(story), 6, loaded.task)
    recipe = preset("best", passes=(*FAST, "tokens", "thrifty", "tune"), budget=0.15)
    thresholds = runs.convert_network(loaded, items, recipe, batch_size=2).thresholds
    refused = {"merge", "bytes"}  # texts refuse one, and `layout` is in place of the other
    assert set(thresholds.passes) == set(PASSES) - refused
    assert thresholds.provenance["energy"]["ratios"]["binary"] == pytest.approx(0.15, rel=0.05)


def test_fisher_information_of_a_window_is_the_sum_over_its_positions(story, tmp_path):
    """Tokens are drawn independently, so that the square of a sum of gradients is, on average, the sum of squares."""
    loaded = load_model(f"transformers:{llama(tmp_path / 'network')}", pretrained=True).with_length(4)
    batch = {"input_ids": loaded.task.inputs(str(story)).items[0].content[None]}
    recipe = preset("sformer")
    state = PassState(calibrate(loaded.model, [batch], recipe), recipe)
    site = next(s for s in state.spiking if "down_proj" in s.owner)
    windows = [{"input_ids": batch["input_ids"].expand(16, -1)}]
    drawn = [
        fisher(state, PassContext(loaded.model, windows, seed=seed, task=loaded.task))[site]
        for seed in range(25)
    ]
    result = sum(row.information for row in drawn) / (16 * len(drawn))
    exact = expected(loaded.model, batch["input_ids"], site.owner)
    assert torch.allclose(result, exact, rtol=0.5)
    assert result.sum() == pytest.approx(float(exact.sum()), rel=0.1)


def expected(model, ids, owner):
    """Σ over positions and tokens of p·(∂ log p / ∂ x)², by the definition."""
    chosen = []
    hook = model.get_submodule(owner).register_forward_pre_hook(
        lambda _, x: (chosen.append(x[0].requires_grad_()), (chosen[-1],))[1]
    )
    scores = model(input_ids=ids).logits[0].log_softmax(-1)
    hook.remove()
    total = 0
    for row in scores:
        for value in row:
            (gradient,) = torch.autograd.grad(value, chosen[0], retain_graph=True)
            total = total + value.exp().detach() * gradient.double().square().sum((0, 1))
    return total


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
    monkeypatch.setattr("onespike.passes.tune.STEPS", 20)
    state, context, _ = scenes
    start = chain(state, context, ("nearest", "allocate"))
    tuned = chain(state, context, ("nearest", "allocate", "tune"))
    held = [context.inputs[-1]]
    after, before = divergences([tuned, start], context, held).sum(1)
    assert after <= 1.05 * before  # what is clearly worse is undone
