"""COCO data and its AP: images with their ids as labels, their truth, and results scored by it."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from onespike.errors import DataError, LoadError
from onespike.runtime.validated import parse
from onespike.tasks.images import BUNDLED, Item, Items, image_size, list_images, unknown_strip

INSTANCES = "Give COCO's instances file."
PLURALS = {"image": "images", "category": "categories", "annotation": "annotations"}
FIGURES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
"""pycocotools' twelve figures in its order, here in percent; None where the data has no such object."""

Result = dict[str, Any]
SCENES = {"scenes-test": "scenes_test", "scenes-calibration": "scenes_calibration"}


@dataclass(frozen=True)
class Coco:
    """The checked contents of an instances file.

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
        """Return category id → name, in the order of the ids; the ids may have gaps."""
        return {c["id"]: c["name"] for c in sorted(self.record["categories"], key=lambda c: int(c["id"]))}


def read_coco(file: Path | str) -> Coco:
    """Read an instances file; an inconsistency raises an error that names its id and its field."""
    from onespike.tasks.coco_schema import Instances, place_of, problems

    file = Path(file)
    try:
        text = file.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{file}: no such file. Give the instances JSON with --annotations FILE.") from error
    except OSError as error:
        raise DataError(f"{file}: the file cannot be read ({error.strerror}). {INSTANCES}") from error
    record = parse(
        Instances, text, file, INSTANCES, DataError, lambda location: place_of(json.loads(text), location)
    )
    for key, entries in record.items():
        if not entries:
            raise DataError(f"{file}: its list {key!r} is empty. Give a file with annotated objects.")
    for kind, number, name, wrong in problems(record):
        entry = next(e for e in record[PLURALS[kind]] if e["id"] == number)  # type: ignore[literal-required]
        value = repr(entry[name])
        shown = value if len(value) < 60 else f"{value[:60]}…"
        raise DataError(
            f"{file}: {kind} {number} has the {name} {shown}, {wrong}. Correct the entry, or remove it."
        )
    for annotation in record["annotations"]:
        annotation.setdefault("iscrowd", 0)
        shape = annotation.get("segmentation")
        if not shape or (isinstance(shape, list) and not any(shape)):
            annotation.pop("segmentation", None)
    return Coco(str(file), cast(dict[str, Any], record), {i["id"]: dict(i) for i in record["images"]})


def list_coco(folder: Path | str, annotations: Path | str | None = None) -> tuple[Items, Coco]:
    """Return the annotated images of a folder, sorted by id, and their truth, which the images also hold.

    `bundled:scenes-test` and `bundled:scenes-calibration` include their annotations.
    """
    if str(folder).startswith("bundled:"):
        name = str(folder).removeprefix("bundled:")
        if name not in SCENES:
            raise unknown_strip(str(folder), SCENES)
        coco, strip = read_coco(BUNDLED / f"{SCENES[name]}.json"), BUNDLED / f"{SCENES[name]}.png"
        scenes = (Item(f"{name}/{i:04d}", i, strip, row, i) for row, i in enumerate(sorted(coco.images)))
        return Items(str(folder), tuple(scenes), truth=coco), coco
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
    return Items(str(folder), tuple(items), truth=coco), coco


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


def matched(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], overlap: float = 0.5
) -> dict[int, int]:
    """Return which results on one image two networks share: place in the first list → place in the second.

    Each takes the best free box of the same class that overlaps it with at least this IoU.

    >>> cat = {"category_id": 1, "bbox": [0.0, 0.0, 4.0, 4.0]}
    >>> matched([cat], [{**cat, "category_id": 2}, {**cat, "bbox": [0.0, 0.0, 4.0, 3.0]}])
    {0: 1}
    """
    from pycocotools.mask import iou

    shared = iou([a["bbox"] for a in first], [b["bbox"] for b in second], [False] * len(second))
    pairs: dict[int, int] = {}
    for i, a in enumerate(first):
        free = [
            (shared[i][j], -j)
            for j, b in enumerate(second)
            if b["category_id"] == a["category_id"] and j not in pairs.values()
        ]
        if free and max(free)[0] >= overlap:
            pairs[i] = -max(free)[1]
    return pairs


def average_precision(
    coco: Coco, results: Sequence[Result], kind: str, images: Sequence[int]
) -> tuple[dict[str, float | None], dict[int, float | None]]:
    """Return pycocotools' figures for COCO results of one kind, and AP of each category with objects, in percent."""
    return figures_of(evaluated(coco, results, kind, images))


def figures_of(evaluator: Any) -> tuple[dict[str, float | None], dict[int, float | None]]:
    """Return the figures of a finished evaluator: of all categories, and AP of each, in percent."""
    precision = evaluator.eval["precision"]  # IoU × recall × category × area × number of detections
    classes = {}
    for place, number in enumerate(evaluator.params.catIds):
        values = precision[:, :, place, 0, -1]
        if (values > -1).any():
            classes[number] = _percent(values[values > -1].mean())
    return {name: _percent(v) for name, v in zip(FIGURES, evaluator.stats, strict=True)}, classes


def evaluated(coco: Coco, results: Sequence[Result], kind: str, images: Sequence[int]) -> Any:
    """Return a pycocotools evaluator that has finished these images."""
    coco_class, evaluator_class = pycocotools_classes()
    shape = "bbox" if kind == "bbox" else "segmentation"
    # With both shapes in a result pycocotools would take a mask's area from its box.
    plain = [{k: r[k] for k in ("image_id", "category_id", "score", shape)} for r in results]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco_class()
        # Numbered from 1: pycocotools reads the id 0 as "no match".
        annotations = [{**a, "id": n} for n, a in enumerate(coco.record["annotations"], 1)]
        truth.dataset = {**coco.record, "annotations": annotations}
        truth.createIndex()
        if plain:
            found = truth.loadRes(plain)
        else:
            found = coco_class()
            found.dataset = {**coco.record, "annotations": []}
            found.createIndex()
        evaluator = evaluator_class(truth, found, kind)
        evaluator.params.imgIds = sorted(images)
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return evaluator


def resampled(evaluators: Sequence[Any], draws: int) -> Iterator[list[float]]:
    """Return AP of each evaluator on images drawn with replacement, the same images for all: a paired bootstrap."""
    import numpy

    copies, random = [], numpy.random.default_rng(0)
    for evaluator in evaluators:
        own = copy.copy(evaluator)
        own.params = copy.deepcopy(evaluator.params)
        shape = len(own.params.catIds), len(own.params.areaRng), len(own.params.imgIds)
        cells = numpy.array(evaluator.evalImgs, dtype=object).reshape(shape)[:, 0]
        own.params.areaRng, own.params.areaRngLbl = own.params.areaRng[:1], own.params.areaRngLbl[:1]
        own.params.maxDets, own.params.imgIds = own.params.maxDets[-1:], list(range(shape[2]))
        own._paramsEval = own.params
        copies.append((own, cells))
    for _ in range(draws):
        chosen = random.integers(0, shape[2], shape[2])
        found = []
        for own, cells in copies:
            own.evalImgs = cells[:, chosen].flatten().tolist()
            with contextlib.redirect_stdout(io.StringIO()):
                own.accumulate()
            precision = own.eval["precision"]
            found.append(
                100 * float(precision[precision > -1].mean()) if (precision > -1).any() else math.nan
            )
        yield found


def _percent(value: Any) -> float | None:
    return None if value < 0 else 100 * float(value)


def pycocotools_classes() -> tuple[Any, Any]:
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError as error:
        raise LoadError(
            "boxes and masks are scored with pycocotools. Install it with: pip install 'onespike[detection]'"
        ) from error
    return COCO, COCOeval


def unlabeled(source: str) -> Items:
    """Return images without labels: of a folder, or of any bundled strip."""
    return list_coco(source)[0] if source.removeprefix("bundled:") in SCENES else list_images(source)
