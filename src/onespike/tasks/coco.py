"""COCO-format data: a folder of images and a JSON of instances → images whose label is their id, and the truth."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onespike.errors import DataError
from onespike.tasks.images import BUNDLED, Item, Items, image_size, unknown_strip

SCENES = {"scenes-test": "scenes_test", "scenes-calibration": "scenes_calibration"}


@dataclass(frozen=True)
class Coco:
    """What an instances file says, checked.

    Attributes:
        source: the file.
        record: its contents: `images`, `annotations` and `categories`.
        images: image id → its record.
    """

    source: str
    record: dict[str, Any] = field(repr=False)
    images: dict[int, dict[str, Any]] = field(repr=False)

    @property
    def categories(self) -> dict[int, str]:
        """Category id → name, in the order of the ids; the ids may have gaps."""
        return {c["id"]: c["name"] for c in sorted(self.record["categories"], key=lambda c: int(c["id"]))}


def read_coco(file: Path | str) -> Coco:
    """Read an instances file; whatever does not fit together is named with its id."""
    file = Path(file)
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{file}: no such file. Give the instances JSON with --annotations FILE.") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{file}: this is not JSON ({error}). Give COCO's instances file.") from error
    for key in ("images", "annotations", "categories"):
        if not isinstance(record, dict) or not isinstance(record.get(key), list):
            raise DataError(f"{file}: it has no list {key!r}. Give COCO's instances file.")
        if not record[key]:
            raise DataError(f"{file}: its list {key!r} is empty. Give a file with annotated objects.")
    try:
        images = {image["id"]: image for image in record["images"]}
        _check(file, record, images)
    except KeyError as error:
        raise DataError(f"{file}: an entry lacks {error}. Give COCO's instances file.") from error
    except TypeError as error:  # a number where a record should be, a list where a number should be
        raise DataError(
            f"{file}: an entry is not of COCO's form ({error}). Give COCO's instances file."
        ) from error
    return Coco(str(file), record, images)


def _check(file: Path, record: dict[str, Any], images: dict[int, Any]) -> None:
    if len(images) < len(record["images"]):
        ids = [image["id"] for image in record["images"]]
        twice = next(i for i in ids if ids.count(i) > 1)
        raise DataError(f"{file}: two images have the id {twice}. Give every image an id of its own.")
    for image in record["images"]:
        _ = image["file_name"], image["width"], image["height"]
    categories = {c["id"] for c in record["categories"] if c["name"]}
    for annotation in record["annotations"]:
        for key, known in (("image_id", images), ("category_id", categories)):
            if annotation[key] not in known:
                raise DataError(
                    f"{file}: annotation {annotation['id']} has {key} {annotation[key]}, which the file does not list. "
                    "Remove it, or add what it refers to."
                )
        annotation.setdefault("iscrowd", 0)
        numbers = [*annotation["bbox"], annotation["area"]]
        if len(numbers) != 5 or not all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers):
            raise DataError(
                f"{file}: annotation {annotation['id']} has the box {annotation['bbox']} and the area "
                f"{annotation['area']}. Give four finite numbers and one."
            )


def list_coco(folder: Path | str, annotations: Path | str | None = None) -> tuple[Items, Coco]:
    """The annotated images of a folder, sorted by id, and the truth about them.

    `bundled:scenes-test` and `bundled:scenes-calibration` bring their annotations along.
    """
    if str(folder).startswith("bundled:"):
        name = str(folder).removeprefix("bundled:")
        if name not in SCENES:
            raise unknown_strip(str(folder), SCENES)
        coco, strip = read_coco(BUNDLED / f"{SCENES[name]}.json"), BUNDLED / f"{SCENES[name]}.png"
        scenes = (Item(f"{name}/{i:04d}", i, strip, row, i) for row, i in enumerate(sorted(coco.images)))
        return Items(str(folder), tuple(scenes)), coco
    if annotations is None:
        raise DataError(
            f"{folder}: boxes are scored with annotations. Give the instances JSON with --annotations FILE."
        )
    if not Path(folder).is_dir():
        raise DataError(f"{folder}: no such folder. Give the folder that holds the images.")
    coco = read_coco(annotations)
    items = []
    for number, image in sorted(coco.images.items()):
        item = Item(image["file_name"], number, Path(folder) / image["file_name"], id=number)
        if not item.path.is_file():
            raise DataError(
                f"{item.path}: the file of image id {number} is missing; {annotations} names it. "
                "Give the folder that holds it, or remove the image from the annotations."
            )
        if (found := image_size(item)) != (image["width"], image["height"]):
            raise DataError(
                f"{item.path}: image id {number} is {found[0]}×{found[1]}, and {annotations} says "
                f"{image['width']}×{image['height']}. Give the images that were annotated."
            )
        items.append(item)
    return Items(str(folder), tuple(items)), coco


def category_ids(class_names: Sequence[str] | None, categories: dict[int, str]) -> dict[int, int]:
    """A network's class numbers → category ids: by name, or by place where only the numbers of classes agree.

    >>> category_ids(("background", "cat", "N/A", "dog"), {5: "cat", 9: "dog"})
    {1: 5, 3: 9}
    >>> category_ids(("kitten", "puppy"), {5: "cat", 9: "dog"})
    {0: 5, 1: 9}
    """
    if class_names is None:
        return {i: i for i in categories}
    places = {name.lower(): i for i, name in enumerate(class_names)}
    named = {places[name.lower()]: i for i, name in categories.items() if name.lower() in places}
    if named:
        return named
    if len(class_names) == len(categories):
        return dict(enumerate(categories))
    raise DataError(
        f"the network knows {len(class_names)} classes, and the annotations have {len(categories)} categories with "
        "other names. Use annotations of the data that the network was trained for."
    )
