"""Accuracy with trained weights: what conversion keeps, on the bundled networks and on foreign ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import onespike
from onespike import preset, runs
from onespike.adapters import load_model
from onespike.neurons import Neuron
from onespike.tasks import limit, list_images


def measure(spec: str, images: int, base: str = "sformer", **changes):
    calibration, test = (list_images(f"bundled:cifar10-{name}") for name in ("calibration", "test"))
    recipe = onespike.preset(base, **changes)
    pair = runs.convert_network(load_model(spec), limit(calibration, 64), recipe, batch_size=64)
    return runs.evaluate_pair(pair, limit(test, images), batch_size=50).to_dict()


@pytest.mark.parametrize("spec", ["bundled:cifar10-vit", "bundled:cifar10-resnet18"])
def test_bundled_networks_keep_their_accuracy_in_one_step(spec):
    figures = measure(spec, 200)
    chance = 10.0
    assert figures["ann"]["top1"] > 75
    assert figures["snn"]["top1"] > figures["ann"]["top1"] - 10 > 3 * chance
    assert 0 < figures["energy"]["nonzero"] <= figures["energy"]["binary"] <= figures["energy"]["counts"] < 1


def test_a_foreign_resnet_converts_with_folded_norms(assets, monkeypatch):
    """An independent check of the CNN path: functional ReLUs, published weights, 91.78 % on the whole test set."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    import cifar_resnet

    loaded = cifar_resnet.load(20, assets / "cifar10_resnet20.safetensors")
    pair = runs.convert_network(
        loaded, list_images("bundled:cifar10-calibration"), onespike.preset("sformer", scale=0.15)
    )
    assert len(pair.thresholds.folds) == 19
    spiking = [neuron for _, neuron in onespike.named_neurons(pair.snn) if isinstance(neuron, Neuron)]
    assert all(float(neuron.negative) == 0 for neuron in spiking)
    figures = runs.evaluate_pair(pair, list_images("bundled:cifar10-test"), batch_size=100).to_dict()
    assert abs(figures["ann"]["top1"] - 91.78) < 2.5
    assert figures["snn"]["top1"] > figures["ann"]["top1"] - 10


def test_vit_tiny_on_real_images(assets):
    """The paper's recipe at λ = 0.25 on ImageNet: far above chance, at less than a third of the energy."""
    loaded = load_model("timm:vit_tiny_patch16_224", weights=assets / "vit_tiny_patch16_224.safetensors")
    calibration = limit(list_images(assets / "imagenet" / "calibration"), 32)
    pair = runs.convert_network(loaded, calibration, onespike.preset("sformer", scale=0.25))
    figures = runs.evaluate_pair(pair, limit(list_images(assets / "imagenet" / "val"), 30)).to_dict()
    assert figures["ann"]["top1"] > 60
    assert figures["snn"]["top1"] > 35
    assert figures["kl"] < 2
    assert 0.2 < figures["energy"]["counts"] < 0.35
    ratios = [figures["energy"][column] for column in ("nonzero", "binary", "counts", "strict")]
    assert ratios == sorted(ratios)


def test_a_language_model_loses_what_its_recipe_says_and_writes_on(assets):
    """Nearest rounding is worth what it is worth elsewhere, and the story stays English."""
    folder, texts = assets / "language" / "stories15M", assets / "language" / "tinystories"
    if not folder.is_dir():
        pytest.skip("stories15M is not among the larger test files")
    loaded = load_model(f"transformers:{folder}", pretrained=True).with_length(64)
    calibration = runs.choose(str(texts / "calibration.txt"), 8, loaded.task)
    items = runs.choose_labeled(loaded, str(texts / "val.txt"), None, 8)
    figures = []
    for changes in ({"scale": 0.125, "rounding": "nearest"}, {}):
        pair = runs.convert_network(loaded, calibration, onespike.preset("sformer", **changes), batch_size=8)
        figures.append(runs.evaluate_pair(pair, items, batch_size=8).to_dict())
    finer, literal = figures
    assert 4 < literal["ann"]["perplexity"] < 20
    assert literal["ann"] == finer["ann"]
    assert finer["kl"] < 0.7 * literal["kl"] < 1.5
    assert finer["snn"]["perplexity"] < literal["snn"]["perplexity"]
    assert 0.55 < literal["head_share"] == literal["analog_share"] < 0.65
    batch = loaded.task.prompts(["Once upon a time, there was a little"], 8)
    ids = pair.ann.generate(**batch, max_new_tokens=3, do_sample=False)[0]
    text = loaded.task.tokenizer.decode(ids.tolist(), bare=True)
    assert text.startswith("Once upon a time, there was a little girl")
    with torch.inference_mode():
        assert pair.snn(**batch).logits.shape[-1] == 32000


def test_the_bundled_detector_keeps_its_boxes_and_masks():
    """Boxes and masks in one step, with weights that were trained for them."""
    calibration = runs.choose("bundled:scenes-calibration", 48)
    pair = runs.convert_network(load_model("bundled:scenes"), calibration, preset("sformer"))
    items = runs.choose_labeled(pair.loaded, "bundled:scenes-test")
    figures = runs.evaluate_pair(pair, items, batch_size=20).to_dict()
    assert figures["images"] == 100
    for kind in ("bbox", "segm"):
        assert figures["ann"][kind]["AP50"] > 75
        assert figures["snn"][kind]["AP50"] > 0.93 * figures["ann"][kind]["AP50"]
    assert 0 < figures["energy"]["nonzero"] <= figures["energy"]["counts"] < 1
