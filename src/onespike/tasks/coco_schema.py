"""Checks of a COCO instances file before it reaches pycocotools, whose C code checks nothing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, NotRequired

from pydantic import Field, FiniteFloat
from typing_extensions import TypedDict  # typing's version is not enough for pydantic before Python 3.12

Number = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Side = Annotated[int, Field(ge=1, le=2**16)]
OUTLINE = 10**7
"""The longest outline in pixels that is drawn: pycocotools keeps five points per pixel and does not check memory."""
NAME = re.compile(r"[^\0\ud800-\udfff]+")
"""What a file system and a record can hold: no NUL, and no half of a character."""
KINDS = {"images": "image", "categories": "category", "annotations": "annotation"}


class Image(TypedDict):
    id: Number
    file_name: str
    width: Side
    height: Side


class Category(TypedDict):
    id: Number
    name: str


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
    segmentation: NotRequired[RunLengths | list[list[float]] | None]


class Instances(TypedDict):
    images: list[Image]
    annotations: list[Annotation]
    categories: list[Category]


def problems(record: Instances) -> Iterator[tuple[str, Mapping[str, Any], str, str]]:
    """Yield every inconsistency: the kind of an entry, the entry, its field, and what is wrong with it."""
    entries: dict[str, dict[int, Any]] = {kind: {} for kind in KINDS.values()}
    for key, kind in KINDS.items():
        for entry in record[key]:  # type: ignore[literal-required]
            if entries[kind].setdefault(entry["id"], entry) is not entry:
                yield kind, entry, "id", "which another one has too"
    for image in record["images"]:
        if not NAME.fullmatch(image["file_name"]):
            yield "image", image, "file_name", "which no file can have"
    names: set[str] = set()
    for category in record["categories"]:
        if not NAME.fullmatch(category["name"]) or category["name"] in names:
            yield "category", category, "name", "which is empty, unprintable or there twice"
        names.add(category["name"])
    for annotation in record["annotations"]:
        for kind in ("image", "category"):
            if annotation[f"{kind}_id"] not in entries[kind]:  # type: ignore[literal-required]
                yield "annotation", annotation, f"{kind}_id", "which the file does not list"
        image = entries["image"].get(annotation["image_id"], {"width": 1, "height": 1})
        for field, wrong in _shapes(annotation, image["width"], image["height"]):
            yield "annotation", annotation, field, wrong


def _shapes(annotation: Annotation, width: int, height: int) -> Iterator[tuple[str, str]]:
    (x, y, *sides), image = annotation["bbox"], f"the image of {width}×{height}"
    if min(sides) < 0:
        yield "bbox", "not x, y, width and height, with no negative side"
    elif not _near([x, y, x + sides[0], y + sides[1]], width, height):
        yield "bbox", f"far outside {image}"
    shape = annotation.get("segmentation")
    if isinstance(shape, dict):
        if wrong := _run_lengths(shape, width, height):
            yield "segmentation", wrong
        return
    for polygon in shape if shape and any(shape) else ():  # some programs write [[]] for none
        if len(polygon) < 6 or len(polygon) % 2:
            yield "segmentation", f"a polygon of {len(polygon)} numbers, not x and y of three points or more"
        elif not all(map(math.isfinite, polygon)) or not _near(polygon, width, height):
            yield "segmentation", f"a polygon that is not finite, or far outside {image}"
        elif len(polygon) * (width + height) > OUTLINE and _outline(polygon) > OUTLINE:
            yield "segmentation", f"a polygon whose outline is longer than {OUTLINE} pixels"


def _near(corners: Sequence[float], width: int, height: int) -> bool:
    """Return whether points lie within one image size around the image: annotators overshoot, damage goes further."""
    xs, ys = corners[0::2], corners[1::2]
    return -width <= min(xs) and max(xs) <= 2 * width and -height <= min(ys) and max(ys) <= 2 * height


def _outline(polygon: Sequence[float]) -> float:
    points = list(zip(polygon[0::2], polygon[1::2], strict=True))
    return sum(max(abs(a[0] - b[0]), abs(a[1] - b[1])) for a, b in pairwise([*points, points[0]]))


def _run_lengths(mask: RunLengths, width: int, height: int) -> str | None:
    """Return what is wrong with run lengths."""
    if mask["size"] != [height, width]:
        return f"run lengths for a size of {mask['size']}, and the image has {[height, width]}"
    try:
        counts = decompressed(mask["counts"]) if isinstance(mask["counts"], str) else mask["counts"]
    except ValueError as error:
        return f"compressed run lengths {error}"
    if min(counts, default=0) < 0 or sum(counts) != width * height:
        return f"run lengths that are negative or do not add up to {width}·{height} pixels"
    return None


def decompressed(text: str) -> list[int]:
    """Return the run lengths in COCO's compressed string.

    Each character holds five bits of a number and whether more follow. From the fourth number on, the difference to the
    last but one is stored.

    >>> decompressed("52203")
    [5, 2, 2, 2, 5]
    """
    counts: list[int] = []
    value = shift = 0
    for character in text:
        group = ord(character) - 48
        if not 0 <= group < 64:
            raise ValueError(f"with the character {character!r}")
        value |= (group & 31) << shift
        shift += 5
        if shift > 60:
            raise ValueError("with a number that does not end")
        if group & 32:
            continue
        if group & 16:
            value -= 1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        value = shift = 0
    if shift:
        raise ValueError("that end in the middle of a number")
    return counts


def place_of(text: bytes, location: Sequence[int | str]) -> str:
    """Return a place in a file in readable form.

    >>> place_of(b'{"annotations": [{"id": 7, "bbox": [null]}]}', ("annotations", 0, "bbox", 0))
    'annotation 7, bbox.0'
    """
    here, entry, parts = json.loads(text), "", list[str]()
    for depth, part in enumerate(location):
        try:
            here = here[part]
        except (LookupError, TypeError):
            # a missing field comes last; otherwise it is the schema's name for one of several forms
            if depth + 1 < len(location) or not isinstance(here, dict):
                continue
        parts.append(str(part))
        if depth == 1 and isinstance(here, dict) and "id" in here:
            entry, parts = f"{KINDS.get(parts[0], parts[0])} {here['id']}", []
    return ", ".join(filter(None, (entry, ".".join(parts))))
