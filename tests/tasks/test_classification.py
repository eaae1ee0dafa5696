"""The metrics against scikit-learn and scipy, their edges, and folders that find the network's classes by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy
from sklearn.metrics import accuracy_score, top_k_accuracy_score

from onespike.errors import DataError
from onespike.tasks import Accuracy, Item, Items, match_classes


@given(
    seed=st.integers(0, 10**6),
    classes=st.integers(3, 12),
    images=st.integers(1, 40),
    split=st.integers(0, 40),
)
def test_against_foreign_implementations(seed, classes, images, split):
    generator = torch.Generator().manual_seed(seed)
    ann = torch.randn(images, classes, generator=generator)
    snn = ann + 0.5 * torch.randn(images, classes, generator=generator)
    labels = torch.randint(0, classes, (images,), generator=generator)
    task = Accuracy()
    for part in (slice(None, split), slice(split, None)):
        task.update(ann[part], snn[part], labels[part])
    scores = task.compute()
    for name, logits in (("ann", ann), ("snn", snn)):
        for metric, k in (("top1", 1), ("top5", min(5, classes))):
            expected = 1.0
            if k < classes:
                expected = top_k_accuracy_score(
                    labels.numpy(), logits.numpy(), k=k, labels=np.arange(classes)
                )
            assert scores[name][metric] == pytest.approx(100 * expected)
    assert scores["agreement"] == pytest.approx(100 * accuracy_score(ann.argmax(1), snn.argmax(1)))
    p, q = ann.double().softmax(1).numpy(), snn.double().softmax(1).numpy()
    assert scores["kl"] == pytest.approx(entropy(p, q, axis=1).mean(), rel=1e-9, abs=1e-12)
    assert scores["images"] == images


def test_equal_networks_agree_and_do_not_diverge_and_masked_classes_add_nothing():
    logits = torch.tensor([[1e4, 0.0, -1e4], [0.0, 1.0, 2.0], [0.0, 1.0, float("-inf")]])
    task = Accuracy()
    task.update(logits, logits.clone(), torch.tensor([0, 0, 0]))
    scores = task.compute()
    assert (scores["agreement"], scores["kl"]) == (100.0, 0.0)
    assert scores["ann"] == scores["snn"] == {"top1": pytest.approx(100 / 3), "top5": 100.0}


def test_without_labels_there_is_no_accuracy():
    task = Accuracy()
    task.update(torch.eye(3), torch.eye(3), torch.arange(3))
    task.update(torch.eye(3), torch.eye(3), None)
    scores = task.compute()
    assert scores["ann"] == scores["snn"] == {"top1": None, "top5": None}
    assert (scores["agreement"], scores["images"]) == (100.0, 6)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 3, 1]), r"label 3, and the network has 3 classes \(0 to 2\)\. Use a data folder"),
        (torch.tensor([0, -1, 1]), r"label -1, and the network has 3 classes"),
        (
            torch.eye(3),
            r"labels of 3 inputs have shape \(3, 3\)\. Give one class number per input; .*labels\.argmax\(1\)",
        ),
        ([0, 1, 2], "labels of 3 inputs have type list"),
    ],
)
def test_labels_that_are_not_one_class_per_input(labels, message):
    with pytest.raises(DataError, match=message):
        Accuracy().update(torch.eye(3), torch.eye(3), labels)


@pytest.mark.parametrize("output", [torch.zeros(2, 3, 4), {"masks": torch.zeros(2, 3)}])
def test_outputs_that_are_not_scores_of_classes_ask_for_a_metric(output):
    with pytest.raises(DataError, match=r"is not scores of shape \(inputs, classes\)\. Give a metric"):
        Accuracy().update(output, output, None)


NAMES = ("tench, Tinca tinca", "great white shark", "crane", "crane", "T-shirt")
IDS = ("n01440764", "n01484850", "n02012849", "n03126707", "n03595614")


def folders(*names: str) -> Items:
    """One image per folder; labels are the places of the sorted names, as a listing gives them."""
    names = tuple(sorted(names))
    return Items("data", tuple(Item(f"{n}/a.png", i, Path(n)) for i, n in enumerate(names)), names)


def labels(items: Items) -> dict[str, int | None]:
    return {item.name.partition("/")[0]: item.label for item in items}


def test_a_part_of_the_classes_in_another_order():
    found = match_classes(folders("T-shirt", "great white shark", "tench, Tinca tinca"), NAMES)
    assert labels(found) == {"T-shirt": 4, "great white shark": 1, "tench, Tinca tinca": 0}
    assert found.class_names == NAMES
    assert match_classes(found, NAMES) is found


def test_ways_to_write_a_class():
    ways = {
        "Great_White_Shark": 1, "GREAT WHITE-SHARK": 1, "n01484850": 1, "n03126707": 3, "tench": 0, "Tinca_tinca": 0,
        "tench_Tinca_tinca": 0,
    }  # fmt: skip
    for name, number in ways.items():
        assert labels(match_classes(folders(name), NAMES, IDS)) == {name: number}


@pytest.mark.parametrize(
    ("names", "classes", "ids", "message"),
    [
        (["crane"], NAMES, IDS, r"'crane' could be the classes 2 and 3 of .* by the numbers of their classes\.$"),
        (["n01484850"], NAMES, None, r"'n01484850' is none of .*pip install 'onespike\[timm\]'"),
        (["great wight shark", "train"], NAMES, None, "'great wight shark' is none of the 5 classes .* Did you mean 'great white shark'. Name each folder by its class"),
        (["Tench", "tinca tinca"], NAMES, None, r"'Tench' and 'tinca tinca' are both .* Merge them\.$"),
        (["cat", "dog"], None, None, "the class names of the network are not known, .* Name each folder by the number"),
    ],
)  # fmt: skip
def test_folders_that_are_not_one_class_are_refused(names, classes, ids, message):
    with pytest.raises(DataError, match=f"^data: .*{message}"):
        match_classes(folders(*names), classes, ids)


def test_numbers_and_images_without_folders_are_left_alone():
    for label in (7, None):
        items = Items("data", (Item("a.png", label, Path("a.png")),))
        assert match_classes(items, NAMES) is items
        assert match_classes(items, None) is items


@pytest.mark.parametrize("spec", ["timm:resnet18", "torchvision:resnet18"])
def test_networks_know_names_and_wordnet_ids(spec):
    pytest.importorskip("timm")
    pytest.importorskip(spec.partition(":")[0])
    from onespike.adapters import load_model

    loaded = load_model(spec, random_weights=True)
    found = loaded.task.named(folders("n02123045", "goldfish", "toilet_tissue"))
    assert labels(found) == {"n02123045": 281, "goldfish": 1, "toilet_tissue": 999}
