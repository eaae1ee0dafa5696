"""The bundled networks. Their files are part of the repository: without them these tests fail."""

from __future__ import annotations

import pytest
import torch

from onespike.adapters import bundled, load_model
from onespike.errors import LoadError
from onespike.tasks import limit, list_images


def test_weights_that_are_not_installed(monkeypatch, tmp_path):
    monkeypatch.setattr(bundled, "IN_PACKAGE", tmp_path)
    monkeypatch.setattr(bundled, "IN_REPOSITORY", tmp_path)
    with pytest.raises(LoadError, match=r"this installation\. Clone .* or give them with weights=FILE"):
        load_model("bundled:cifar10-resnet18")


@pytest.mark.parametrize(
    ("name", "accuracy", "images", "megabytes"),
    [("cifar10-vit", 80, 250, 8), ("cifar10-resnet18", 92, 100, 25)],
)
def test_shipped_weights_recognize_the_shipped_images(name, accuracy, images, megabytes):
    file = bundled.weights_file(name)
    assert file.parent == (bundled.IN_PACKAGE if name == "cifar10-vit" else bundled.IN_REPOSITORY)
    assert file.stat().st_size <= megabytes * 1e6
    loaded = load_model(f"bundled:{name}")
    assert loaded.weights == "bundled" and loaded.published_top1 >= accuracy
    items = limit(list_images("bundled:cifar10-test"), images)
    hits = 0
    with torch.inference_mode():
        for inputs, labels in loaded.batches(items, 50):
            hits += int((loaded.model(inputs).argmax(1) == labels).sum())
    # Five standard deviations of a sample of this size below the requirement.
    share = accuracy / 100
    assert hits / images > share - 5 * (share * (1 - share) / images) ** 0.5
