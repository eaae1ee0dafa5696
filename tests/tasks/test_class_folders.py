"""Class folders find the network's classes by name, or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from onespike.errors import DataError
from onespike.tasks import Item, Items, match_classes

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
        (["Tench", "tinca tinca"], NAMES, None, r"'Tench' and 'tinca tinca' name the same class .* Merge them\.$"),
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
    found = match_classes(
        folders("n02123045", "goldfish", "toilet_tissue"), loaded.task.class_names, loaded.task.class_ids
    )
    assert labels(found) == {"n02123045": 281, "goldfish": 1, "toilet_tissue": 999}
