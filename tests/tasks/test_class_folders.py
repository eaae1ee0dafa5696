"""Class folders find the network's classes by name, or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from onespike.adapters.base import imagenet_synsets
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


@pytest.mark.parametrize(
    "name", ["Great_White_Shark", "great-white-shark", "GREAT WHITE  SHARK", "n01484850"]
)
def test_ways_to_write_a_class(name):
    assert labels(match_classes(folders(name), NAMES, IDS)) == {name: 1}


@pytest.mark.parametrize("name", ["tench", "Tinca_tinca", "tench_Tinca_tinca"])
def test_one_synonym_is_enough(name):
    assert labels(match_classes(folders(name), NAMES)) == {name: 0}


def test_a_name_of_two_classes_needs_another_one():
    with pytest.raises(DataError) as error:
        match_classes(folders("crane"), NAMES, IDS, "timm:x")
    assert str(error.value) == (
        "data: the folder 'crane' could be the classes 2 and 3 of timm:x. "
        "Name all folders by the numbers of their classes."
    )
    assert labels(match_classes(folders("n03126707"), NAMES, IDS)) == {"n03126707": 3}


def test_wordnet_ids_that_nobody_knows_name_the_extra():
    with pytest.raises(DataError, match=r"'n01484850' is none of .*pip install 'onespike\[timm\]'"):
        match_classes(folders("n01484850"), NAMES)


def test_a_folder_that_is_no_class():
    with pytest.raises(DataError) as error:
        match_classes(folders("crane", "great wight shark"), NAMES, None, "timm:x")
    assert "crane" in str(error.value)  # the first in the alphabet
    with pytest.raises(DataError) as error:
        match_classes(folders("great wight shark", "train"), NAMES, None, "timm:x")
    assert str(error.value) == (
        "data: the folder 'great wight shark' is none of the 5 classes of timm:x, which begin with "
        "'tench, Tinca tinca'. Did you mean 'great white shark'? "
        "Name each folder by its class, or all of them by the numbers of their classes."
    )


def test_two_folders_of_one_class():
    with pytest.raises(DataError) as error:
        match_classes(folders("Tench", "tinca tinca"), NAMES)
    assert str(error.value) == (
        "data: the folders 'Tench' and 'tinca tinca' name the same class of the network, 'tench, Tinca tinca'. "
        "Merge them."
    )


def test_a_network_that_does_not_know_its_names():
    with pytest.raises(DataError) as error:
        match_classes(folders("cat", "dog"), None, None, "timm:x")
    assert str(error.value) == (
        "data: the class names of timm:x are not known, so that the folder 'cat' cannot be matched. "
        "Name each folder by the number of its class."
    )


def test_numbers_and_images_without_folders_are_left_alone():
    for label in (7, None):
        items = Items("data", (Item("a.png", label, Path("a.png")),))
        assert match_classes(items, NAMES) is items
        assert match_classes(items, None) is items


def test_imagenet_folders_by_wordnet_id():
    info = pytest.importorskip("timm.data").ImageNetInfo()
    names = [info.index_to_description(i) for i in range(1000)]
    assert imagenet_synsets(names) == tuple(info.label_names())
    assert imagenet_synsets(names[:999]) is imagenet_synsets(None) is None


@pytest.mark.parametrize("spec", ["timm:resnet18", "torchvision:resnet18"])
def test_networks_know_names_and_wordnet_ids(spec):
    pytest.importorskip("timm")
    pytest.importorskip(spec.partition(":")[0])
    from onespike.adapters import load_model

    loaded = load_model(spec, random_weights=True)
    found = match_classes(
        folders("n02123045", "goldfish", "toilet_tissue"), loaded.class_names, loaded.class_ids
    )
    assert labels(found) == {"n02123045": 281, "goldfish": 1, "toilet_tissue": 999}
