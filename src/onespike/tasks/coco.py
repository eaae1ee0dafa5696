"""COCO data: images with their ids as labels, and their truth."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from onespike.errors import DataError, require
from onespike.runtime.validated import read
from onespike.tasks.images import bundled, list_images, opened
from onespike.tasks.inputs import Item, Items

SCENES = ("scenes-test", "scenes-calibration")


@dataclass(frozen=True)
class Coco:
    """The checked contents of an instances file: `images`, `annotations` and `categories`; and its images by their ids."""

    source: str
    record: dict[str, Any] = field(repr=False)
    images: dict[int, dict[str, Any]] = field(repr=False)

    @property
    def categories(self) -> dict[int, str]:
        """Return category id → name, in the order of the ids; the ids may have gaps."""
        return {c["id"]: c["name"] for c in sorted(self.record["categories"], key=lambda c: int(c["id"]))}


def read_coco(file: Path | str) -> Coco:
    """Read an instances file; an inconsistency raises an error that names its id and its field."""
    require("pydantic", "detection", str(file))
    from onespike.tasks.coco_schema import Instances, problems

    file = Path(file)
    record = read(Instances, file, "Give COCO's instances JSON with annotations=FILE.", DataError)
    for kind, entry, name, wrong in problems(record):
        raise DataError(
            f"{file}: {kind} {entry['id']} has the {name} {entry[name]!r:.60}, {wrong}. Correct the entry, or remove it."
        )
    for annotation in record["annotations"]:
        annotation.setdefault("iscrowd", 0)
        shape = annotation.get("segmentation")
        if not shape or (isinstance(shape, list) and not any(shape)):
            annotation.pop("segmentation", None)
    return Coco(str(file), cast(dict[str, Any], record), {i["id"]: dict(i) for i in record["images"]})


def list_coco(folder: Path | str, annotations: Path | str | None = None) -> tuple[Items, Coco]:
    """Return the annotated images of a folder or bundled strip, sorted by id, and their truth, which they also hold."""
    if str(folder).startswith("bundled:"):
        name, file, strip = bundled(str(folder), SCENES)
        coco = read_coco(file)
        scenes = (Item(f"{name}/{i:04d}", i, strip, row, i) for row, i in enumerate(sorted(coco.images)))
        return Items(str(folder), tuple(scenes), truth=coco), coco
    if annotations is None:
        raise DataError(f"{folder}: boxes are scored with annotations. Give annotations=FILE.")
    coco = read_coco(annotations)
    items = []
    for number, image in sorted(coco.images.items()):
        item = Item(image["file_name"], number, Path(folder) / image["file_name"], id=number)
        if not item.path.is_file():
            raise DataError(
                f"{item.path}: the file of image id {number} is missing; {annotations} names it. "
                "Give the folder that holds it, or remove the image from the annotations."
            )
        size = f"{image['width']}×{image['height']}"
        with opened(item) as stored:
            if (actual := f"{stored.width}×{stored.height}") != size:
                raise DataError(
                    f"{item.path}: image id {number} is {actual}, and {annotations} says {size}. "
                    "Give the images that were annotated."
                )
        items.append(item)
    return Items(str(folder), tuple(items), truth=coco), coco


def unlabeled(source: str) -> Items:
    """Return images without labels: of a folder, or of any bundled strip."""
    return list_coco(source)[0] if source.removeprefix("bundled:") in SCENES else list_images(source)


def category_ids(class_names: Sequence[str] | None, categories: dict[int, str]) -> dict[int, int]:
    """Return a network's class numbers → category ids: by name, or by place if only the numbers of classes agree.

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
