"""transformers models from a folder; nothing here uses the network."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from image_folders import vit_folder
from onespike.adapters import load_model
from onespike.errors import LoadError


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return vit_folder(tmp_path_factory.mktemp("vit"), id2label={0: "ant", 1: "bee", 2: "cat"})


IMAGE = Image.effect_mandelbrot((50, 40), (-2, -1, 1, 1), 20).convert("RGB")


def logits(loaded):
    with torch.inference_mode():
        return loaded.model(loaded.reading.transform(IMAGE)[None]).logits


@pytest.fixture(scope="module")
def fused(folder):
    return load_model(f"transformers:{folder}", pretrained=True)


def test_from_a_folder_with_both_kinds_of_attention(folder, fused):
    spec = f"transformers:{folder}"
    eager = load_model(spec, pretrained=True, attention="eager")
    assert (fused.attention, eager.attention) == ("sdpa", "eager")
    assert fused.task.class_names == ("ant", "bee", "cat")
    assert fused.reading.preprocessing == "resize 32×32 bilinear, mean 0.5 0.5 0.5, std 0.5 0.5 0.5"
    assert (fused.weights, fused.spec, fused.model.training) == ("pretrained", spec, False)
    torch.testing.assert_close(logits(fused), logits(eager))
    # a mapped file holds weights anywhere, and the last bits of a product depend on where
    assert not any(w.data_ptr() % 64 for w in fused.model.parameters())


def test_weights_from_files_and_none_at_all(folder, fused, tmp_path):
    torch.save(fused.model.state_dict(), tmp_path / "w.pth")  # by the names in memory
    for file in (folder / "model.safetensors", tmp_path / "w.pth"):
        loaded = load_model(fused.spec, weights=file)
        assert loaded.weights == file.name and torch.equal(logits(loaded), logits(fused))
    torch.manual_seed(1)  # the folder's weights were drawn from seed 0
    assert not torch.equal(logits(load_model(fused.spec, random_weights=True)), logits(fused))


CLASSIFIER = "classifier.weight"
CHANGES = {
    r"another architecture than ViTForImage.*1 missing, first classifier\.weight": lambda tensors: tensors.pop(CLASSIFIER),
    "classifier.weight is of type int8": lambda tensors: tensors.update({CLASSIFIER: tensors[CLASSIFIER].to(torch.int8)}),
    "the tensor classifier.weight holds ": lambda tensors: tensors.update({CLASSIFIER: tensors[CLASSIFIER].double() * 1e300}),
    r"1 of another shape, .* \(7 instead of 3\)": lambda tensors: tensors.update({"classifier.bias": torch.zeros(7)}),
}  # fmt: skip


@pytest.mark.parametrize("message", CHANGES)
def test_weights_that_do_not_fit_are_refused(folder, tmp_path, message):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    file = copy / "model.safetensors"
    tensors = load_file(file)
    CHANGES[message](tensors)
    save_file(tensors, file, {"format": "pt"})
    for source in ({"pretrained": True}, {"weights": file}):
        with pytest.raises(LoadError, match=message) as error:
            load_model(f"transformers:{copy}", **source)
        assert str(copy) in str(error.value)
