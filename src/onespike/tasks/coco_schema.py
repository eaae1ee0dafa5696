"""Checks of a COCO instances file before it reaches pycocotools, whose C code checks nothing."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, NotRequired

from pydantic import Field, FiniteFloat
from typing_extensions import TypedDict  # typing's version is not enough for pydantic before Python 3.12

Number = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Side = Annotated[int, Field(ge=1, le=2**16)]
Name = Annotated[str, Field(pattern=r"^[^\x00]+$")]  # NUL is in no name of a file
OUTLINE = 10**7  # pixels of the longest outline: pycocotools keeps five points for each, and checks no memory
COMPRESSED = re.compile("[P-o]{0,11}[0-O]")  # a run length: five bits per character, and whether more follow
KINDS = {"images": "image", "categories": "category", "annotations": "annotation"}


class Image(TypedDict):
    id: Number
    file_name: Name
    width: Side
    height: Side


class Category(TypedDict):
    id: Number
    name: Name


class RunLengths(TypedDict):
    size: list[int]
    counts: list[int] | str


class Annotation(TypedDict):
    id: Number
    image_id: int
    category_id: int
    bbox: Annotated[list[FiniteFloat], Field(min_length=4, max_length=4)]
    area: Annotated[FiniteFloat, Field(ge=0)]
    iscrowd: NotRequired[Annotated[int, Field(ge=0, le=1)]]
    segmentation: NotRequired[RunLengths | list[list[FiniteFloat]] | None]


class Instances(TypedDict):
    images: Annotated[list[Image], Field(min_length=1)]
    annotations: Annotated[list[Annotation], Field(min_length=1)]
    categories: Annotated[list[Category], Field(min_length=1)]


def problems(record: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], str, str]]:
    """Yield inconsistencies, up to the first: the kind of an entry, the entry, its field, and what is wrong with it."""
    for key, field in (*((key, "id") for key in KINDS), ("categories", "name")):
        values = set()
        for entry in record[key]:
            if entry[field] in values:
                yield KINDS[key], entry, field, "which another one has too"
            values.add(entry[field])
    images = {image["id"]: image for image in record["images"]}
    categories = {category["id"] for category in record["categories"]}
    for annotation in record["annotations"]:
        for field, ids in (("image_id", images), ("category_id", categories)):
            if annotation[field] not in ids:
                yield "annotation", annotation, field, "which the file does not list"
        image = images[annotation["image_id"]]
        for field, wrong in _shapes(annotation, image["width"], image["height"]):
            yield "annotation", annotation, field, wrong


def _shapes(annotation: Mapping[str, Any], width: int, height: int) -> Iterator[tuple[str, str]]:
    (x, y, *sides), image = annotation["bbox"], f"the image of {width}×{height}"
    if min(sides) < 0:
        yield "bbox", "not x, y, width and height, with no negative side"
    elif not _near([x, y, x + sides[0], y + sides[1]], width, height):
        yield "bbox", f"far outside {image}"
    shape = annotation.get("segmentation")
    if isinstance(shape, dict):
        counts = shape["counts"]
        counts = decompressed(counts) if isinstance(counts, str) else counts
        if shape["size"] != [height, width]:
            yield "segmentation", f"for a size of {shape['size']}, and the image has {[height, width]}"
        elif min(counts, default=0) < 0 or sum(counts) != width * height:
            yield "segmentation", f"run lengths that are damaged or do not add up to {width}·{height} pixels"
        return
    for polygon in shape if shape and any(shape) else ():  # some programs write [[]] for none
        if len(polygon) < 6 or len(polygon) % 2:
            yield "segmentation", f"a polygon of {len(polygon)} numbers, not x and y of three points or more"
        elif not _near(polygon, width, height):
            yield "segmentation", f"a polygon far outside {image}"
        elif len(polygon) * (width + height) > OUTLINE and _outline(polygon) > OUTLINE:
            yield "segmentation", f"a polygon whose outline is longer than {OUTLINE} pixels"


def _near(corners: Sequence[float], width: int, height: int) -> bool:
    """Return whether points lie within one image size around the image: annotators overshoot, damage goes further."""
    xs, ys = corners[0::2], corners[1::2]
    return -width <= min(xs) and max(xs) <= 2 * width and -height <= min(ys) and max(ys) <= 2 * height


def _outline(polygon: Sequence[float]) -> float:
    points = list(zip(polygon[0::2], polygon[1::2], strict=True))
    return sum(max(abs(a[0] - b[0]), abs(a[1] - b[1])) for a, b in pairwise([*points, points[0]]))


def decompressed(text: str) -> list[int]:
    """Return the run lengths in COCO's compressed string; none if it is damaged."""
    counts: list[int] = []
    for number in COMPRESSED.findall(text):
        bits = [ord(character) - 48 for character in number]
        value = sum((part & 31) << 5 * place for place, part in enumerate(bits))
        value -= (bits[-1] >> 4) << 5 * len(bits)  # the highest bit is the sign
        counts.append(value + counts[-2] if len(counts) > 2 else value)  # from the fourth on a difference
    return counts if re.fullmatch(f"(?:{COMPRESSED.pattern})*", text) else []
