"""transformers models from a folder; nothing here uses the network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from onespike.adapters import load_model
from onespike.errors import LoadError


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("vit")
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32,
        patch_size=16, id2label={0: "ant", 1: "bee", 2: "cat"},
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(path)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(path)
    return path


def logits(loaded, image):
    with torch.inference_mode():
        return loaded.model(loaded.reading.transform(image)[None]).logits


def test_from_a_folder_with_both_kinds_of_attention(folder):
    spec = f"transformers:{folder}"
    fused = load_model(spec, pretrained=True)
    eager = load_model(spec, pretrained=True, attention="eager")
    assert (fused.attention, eager.attention) == ("sdpa", "eager")
    assert fused.task.class_names == ("ant", "bee", "cat")
    assert fused.reading.preprocessing == "resize 32×32 bilinear, mean 0.5 0.5 0.5, std 0.5 0.5 0.5"
    assert (fused.weights, fused.spec, fused.model.training) == ("pretrained", spec, False)
    image = Image.effect_mandelbrot((50, 40), (-2, -1, 1, 1), 20).convert("RGB")
    torch.testing.assert_close(logits(fused, image), logits(eager, image))


def test_weights_from_a_file_and_none_at_all(folder):
    spec = f"transformers:{folder}"
    image = Image.new("RGB", (40, 50), "teal")
    pretrained = logits(load_model(spec, pretrained=True), image)
    from_file = load_model(spec, weights=folder / "model.safetensors")
    assert from_file.weights == "model.safetensors"
    assert torch.equal(logits(from_file, image), pretrained)
    # a mapped file holds weights anywhere, and the last bits of a product depend on where
    assert not any(w.data_ptr() % 64 for w in load_model(spec, pretrained=True).model.parameters())
    torch.manual_seed(1)  # the folder's weights were drawn from seed 0
    assert not torch.equal(logits(load_model(spec, random_weights=True), image), pretrained)


def test_a_checkpoint_without_the_classifier_is_refused(folder, tmp_path):
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    tensors = load_file(folder / "model.safetensors")
    kept = {k: v for k, v in tensors.items() if not k.startswith("classifier")}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        LoadError, match=r"another architecture than ViTForImage.*2 missing, first classifier\.bias"
    ):
        load_model(f"transformers:{tmp_path}", pretrained=True)


def test_a_file_must_fit_exactly(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.bias"] = torch.zeros(7)
    tensors["more"] = torch.zeros(1)
    path = tmp_path / "w.safetensors"
    save_file(tensors, path)
    with pytest.raises(
        LoadError, match=r"1 unexpected, first more; 1 of another shape, .* \(7 instead of 3\)"
    ):
        load_model(f"transformers:{folder}", weights=path)


def test_the_names_in_memory_load_too(folder, tmp_path):
    loaded = load_model(f"transformers:{folder}", pretrained=True)
    torch.save(loaded.model.state_dict(), tmp_path / "w.pth")
    again = load_model(f"transformers:{folder}", weights=tmp_path / "w.pth")
    image = Image.new("RGB", (40, 50), "teal")
    assert torch.equal(logits(again, image), logits(loaded, image))


def test_the_configuration_builds_the_network_again(folder, tmp_path):
    loaded = load_model(f"transformers:{folder}", pretrained=True)
    assert loaded.save_configuration is not None
    loaded.save_configuration(tmp_path / "configuration")
    again = load_model(f"transformers:{tmp_path / 'configuration'}", random_weights=True)
    again.model.load_state_dict(loaded.model.state_dict())
    assert again.reading.preprocessing == loaded.reading.preprocessing and again.task == loaded.task
    image = Image.new("RGB", (40, 50), "teal")
    assert torch.equal(logits(again, image), logits(loaded, image))


def test_a_folder_without_a_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(
        LoadError, match=r"holds no network that can be loaded \(.*Write one there with save_pretrained"
    ):
        load_model(f"transformers:{tmp_path}", pretrained=True)


@pytest.mark.parametrize("source", ["folder", "file"])
def test_weights_of_another_type_are_refused_with_their_name(folder, tmp_path, source):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    tensors = load_file(copy / "model.safetensors")
    given = {"pretrained": True} if source == "folder" else {"weights": copy / "model.safetensors"}
    for change, message in (
        (lambda w: (w * 100).to(torch.int8), "classifier.weight is of type int8"),
        (lambda w: w.double() * 1e300, "the tensor classifier.weight holds "),
    ):
        save_file(
            {**tensors, "classifier.weight": change(tensors["classifier.weight"])}, copy / "model.safetensors"
        )
        with pytest.raises(LoadError, match=message) as error:
            load_model(f"transformers:{copy}", **given)
        assert str(copy / "model.safetensors") in str(error.value)
