"""A folder (or a bundled strip) → a sorted list of images with labels."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.errors import DataError, UsageError, unknown
from onespike.tasks.decode import decode, require_pillow, stated_size

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
BUNDLED = Path(__file__).parent / "bundled"
THUMBNAIL = 96
"""The longer side of a displayed image, in pixels."""
STRIPS = {"cifar10-test": "cifar10_test", "cifar10-calibration": "cifar10_calibration"}


@dataclass(frozen=True)
class Item:
    """One input: a file, one row of a strip, or a part of a file that was already read.

    Attributes:
        name: its name in records.
        label: what it is scored by: a class, or a number by which a metric finds the truth.
        path: the file.
        row: its place in a file that holds several.
        id: its number in a COCO file.
        content: what was read from a file that holds several inputs.
        sha256: the hash of that content.
    """

    name: str
    label: int | None
    path: Path
    row: int | None = None
    id: int | None = None
    content: Any = field(default=None, repr=False, compare=False)
    sha256: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Items(Sequence[Item]):
    """Images in order, their source, class names if the source gives them, and truth beyond labels."""

    source: str
    items: tuple[Item, ...]
    class_names: tuple[str, ...] | None = None
    truth: Any = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Item:  # type: ignore[override]
        return self.items[index]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(item.name for item in self.items)

    @property
    def labeled(self) -> bool:
        return all(item.label is not None for item in self.items)


def list_images(folder: Path | str) -> Items:
    """Return the images of a folder, sorted by name, with labels from its sub-folders.

    If every sub-folder's name is a number, that number is the label; otherwise it is the place of the name among
    the sorted names. A folder without sub-folders gives images without labels. Hidden files are left out.
    `bundled:cifar10-test` and `bundled:cifar10-calibration` are the images that ship with onespike.
    """
    source = str(folder)
    if source.startswith("bundled:"):
        return _list_strip(source)
    folder = Path(folder)
    if not folder.exists():
        raise DataError(f"{folder}: no such folder. Check the path, or use bundled:cifar10-test.")
    if not folder.is_dir():
        raise DataError(f"{folder}: this is a file. Give the folder that holds the images.")
    try:
        files = sorted(_walk(folder))
        classes = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    except PermissionError as error:
        raise DataError(f"{error.filename}: this folder cannot be read. Change its permissions.") from error
    if not files:
        raise DataError(
            f"{folder}: no images in it. Give a folder with files that end in {', '.join(SUFFIXES)}."
        )
    loose = [p for p in files if p.parent == folder]
    if len(loose) == len(files):
        return Items(source, tuple(Item(p.name, None, p) for p in files))
    if loose:
        raise DataError(
            f"{folder}: images stand both beside and inside the class folders, first {loose[0].name}. "
            "Move the loose ones away."
        )
    labels = _labels(classes, folder)
    numbered = all(name.isdecimal() for name in classes)
    items = (Item(p.relative_to(folder).as_posix(), labels[p.relative_to(folder).parts[0]], p) for p in files)
    return Items(source, tuple(items), None if numbered else tuple(classes))


def limit(items: Items, count: int) -> Items:
    """Return `count` images evenly spaced over the list, or all of them if there are fewer.

    >>> ten = Items("ten", tuple(Item(str(i), None, Path()) for i in range(10)))
    >>> limit(ten, 4).names
    ('0', '2', '5', '7')
    """
    if count < 1:
        raise UsageError(
            f"limit must be at least 1, not {count}. Leave it out to use all {len(items)} images."
        )
    count = min(count, len(items))
    chosen = tuple(items[i * len(items) // count] for i in range(count))
    return dataclasses.replace(items, items=chosen)


def read_image(item: Item) -> Image:
    """Return the image in RGB as it is stored: see `onespike.tasks.decode`."""
    if item.row is not None:
        require_pillow(item.name)
        from PIL import Image

        side, pixels = _strip(item.path)
        size = side * side * 3
        return Image.frombytes("RGB", (side, side), pixels[item.row * size : (item.row + 1) * size])
    return decode(item.path, _what(item))


def image_size(item: Item) -> tuple[int, int]:
    """Return width and height from the file's header."""
    return stated_size(item.path, _what(item))


def _what(item: Item) -> str:
    return "the image" if item.id is None else f"image id {item.id}"


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the images in and below a folder; links are followed, hidden files left out."""

    def refuse(error: OSError) -> None:
        raise error

    for place, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            inner = Path(place, name)
            if inner.is_symlink() and Path(place).resolve().is_relative_to(inner.resolve()):
                raise DataError(f"{inner}: this link leads back to a folder that holds it. Remove it.")
        for name in files:
            path = Path(place, name)
            if name.startswith(".") or path.suffix.lower() not in SUFFIXES:
                continue
            if path.is_symlink() and not path.exists():
                raise DataError(f"{path}: this link leads nowhere. Remove or mend it.")
            if path.is_file():
                yield _named(path)


def _named(path: Path) -> Path:
    """Return the path, if records can contain its name."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        shown = str(path).encode(errors="backslashreplace").decode()
        raise DataError(f"{shown}: the name is not UTF-8. Rename it.") from error
    return path


def _labels(classes: list[str], folder: Path) -> dict[str, int]:
    if not all(name.isdecimal() for name in classes):
        return {name: index for index, name in enumerate(classes)}
    labels: dict[int, str] = {}
    for name in classes:
        if (other := labels.setdefault(int(name), name)) != name:
            raise DataError(f"{folder}: the folders {other} and {name} name the same class. Merge them.")
    return {name: label for label, name in labels.items()}


def _list_strip(source: str) -> Items:
    name = source.removeprefix("bundled:")
    if name not in STRIPS:
        raise unknown_strip(source, STRIPS)
    record = json.loads((BUNDLED / f"{STRIPS[name]}.json").read_text(encoding="utf-8"))
    path = BUNDLED / f"{STRIPS[name]}.png"
    rows = zip(record["indices"], record["labels"], strict=True)
    items = (Item(f"{name}/{index:05d}", label, path, row) for row, (index, label) in enumerate(rows))
    return Items(source, tuple(items), tuple(record["classes"]))


def unknown_strip(source: str, known: Iterable[str]) -> UsageError:
    return unknown("bundled images", source, [f"bundled:{name}" for name in known])


@lru_cache(maxsize=2)
def _strip(path: Path) -> tuple[int, bytes]:
    """Return the side and all pixels of a strip, which has one square image per row."""
    from PIL import Image

    with Image.open(path) as image:
        return math.isqrt(image.width), image.convert("RGB").tobytes()


def thumbnail(image: Image) -> str:
    """Return an image of any size as a small PNG in a data URI."""
    image = image.copy()
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
