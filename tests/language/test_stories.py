"""A trained language model: what it writes stays English, and nearest rounding is worth what it is worth elsewhere."""

from __future__ import annotations

import pytest
import torch

from onespike import preset, runs
from onespike.adapters import load_model


@pytest.fixture(scope="module")
def loaded(assets):
    folder = assets / "language" / "stories15M"
    if not folder.is_dir():
        pytest.skip("stories15M is not among the larger test files")
    return load_model(f"transformers:{folder}", pretrained=True).with_length(64)


def measured(loaded, assets, **changes):
    texts = assets / "language" / "tinystories"
    calibration = runs.choose(str(texts / "calibration.txt"), 8, loaded.task)
    pair = runs.convert_network(loaded, calibration, preset("sformer", **changes), batch_size=8)
    items = runs.choose_labeled(loaded, str(texts / "val.txt"), None, 8)
    return pair, runs.evaluate_pair(pair, items, batch_size=8).to_dict()


def test_the_loss_is_that_of_the_recipe(loaded, assets):
    pair, literal = measured(loaded, assets)
    _, finer = measured(loaded, assets, scale=0.125, rounding="nearest")
    assert 4 < literal["ann"]["perplexity"] < 20
    assert literal["ann"] == finer["ann"]
    assert finer["kl"] < 0.7 * literal["kl"] < 1.5
    assert finer["snn"]["perplexity"] < literal["snn"]["perplexity"]
    assert 0.55 < literal["head_share"] == literal["analog_share"] < 0.65
    batch = loaded.task.prompts(["Once upon a time, there was a little"], 8)
    text = loaded.task.said(pair.ann.generate(**batch, max_new_tokens=3, do_sample=False)[0])
    assert text.startswith("Once upon a time, there was a little girl")
    with torch.inference_mode():
        assert pair.snn(**batch).logits.shape[-1] == 32000
