"""A folder (or a bundled strip) → a sorted list of images with labels; a file → RGB pixels."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from onespike.errors import DataError, require, unknown
from onespike.tasks.inputs import Item, Items

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow's names of the formats that are read, regardless of file names; its other decoders stay unused."""
BUNDLED = Path(__file__).parent / "bundled"
THUMBNAIL = 96  # the longer side of a displayed image, in pixels
STRIPS = ("cifar10-test", "cifar10-calibration")


def list_images(folder: Path | str) -> Items:
    """Return the images of a folder or of a bundled strip, sorted by name, with labels from its sub-folders, if any.

    If every sub-folder's name is a number, that number is the label; otherwise it is the place of the name among
    the sorted names. Hidden files are left out.
    """
    source = str(folder)
    if source.startswith("bundled:"):
        name, file, strip = bundled(source, STRIPS)
        record = json.loads(file.read_text(encoding="utf-8"))
        rows = enumerate(zip(record["indices"], record["labels"], strict=True))
        images = (Item(f"{name}/{index:05d}", label, strip, row) for row, (index, label) in rows)
        return Items(source, tuple(images), tuple(record["classes"]))
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
        raise DataError(f"{folder}: no images in it. Give one with files that end in {', '.join(SUFFIXES)}.")
    loose = [p.name for p in files if p.parent == folder]
    if len(loose) == len(files):
        return Items(source, tuple(Item(p.name, None, p) for p in files))
    if loose:
        raise DataError(f"{folder}: images stand beside class folders, first {loose[0]}. Move them away.")
    numbered = all(name.isdecimal() for name in classes)
    labels = {name: int(name) if numbered else place for place, name in enumerate(classes)}
    folders: dict[int, str] = {}
    for name, label in labels.items():
        if (other := folders.setdefault(label, name)) != name:
            raise DataError(f"{folder}: the folders {other} and {name} name the same class. Merge them.")
    names = [p.relative_to(folder) for p in files]
    items = (Item(name.as_posix(), labels[name.parts[0]], p) for name, p in zip(names, files, strict=True))
    return Items(source, tuple(items), None if numbered else tuple(classes))


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
        images = (Path(place, name) for name in files if not name.startswith("."))
        for path in (path for path in images if path.suffix.lower() in SUFFIXES):
            if path.is_symlink() and not path.exists():
                raise DataError(f"{path}: this link leads nowhere. Remove or mend it.")
            if path.is_file():
                if (escaped := str(path).encode(errors="backslashreplace").decode()) != str(path):
                    raise DataError(f"{escaped}: the name is not UTF-8. Rename it.")
                yield path


def bundled(source: str, names: Sequence[str]) -> tuple[str, Path, Path]:
    """Return the name of images that ship with onespike, their record, and the strip that holds them."""
    name = source.removeprefix("bundled:")
    if name not in names:
        raise unknown("bundled images", source, [f"bundled:{name}" for name in names])
    file = BUNDLED / name.replace("-", "_")
    return name, file.with_suffix(".json"), file.with_suffix(".png")


@lru_cache(maxsize=2)
def _strip(path: Path) -> Image:
    """Return a strip, which has one square image per row."""
    with _pillow(path).open(path) as image:
        return cast("Image", image.convert("RGB"))


def read_image(item: Item) -> Image:
    """Return an image in RGB as stored: no EXIF rotation, alpha dropped, the high byte of 16-bit gray.

    What 8 bits cannot hold is rescaled or refused, never clipped.
    """
    if item.row is not None:
        strip = _strip(item.path)
        side = math.isqrt(strip.width)
        row = strip.crop((0, item.row, strip.width, item.row + 1)).tobytes()
        return cast("Image", _pillow(item.name).frombytes("RGB", (side, side), row))
    with opened(item) as image:
        image.verify()  # checks checksums, if the format has them; the file must then be reopened
    with opened(item) as image:
        return _rgb(image, item)


def _rgb(image: Image, item: Item) -> Image:
    frames: int = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # a camera's preview after the photograph is not an animation
        raise DataError(f"{_title(item)} has {frames} frames. Save the one that is meant by itself.")
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        # The high byte, as Pillow reads 16-bit color: there are four per pixel, in the machine's order.
        high = image.convert("I").tobytes()[1 if sys.byteorder == "little" else 2 :: 4]
        return cast("Image", _pillow(item.path).frombytes("L", image.size, high)).convert("RGB")
    if image.mode in ("I", "F"):
        bits = "32-bit integers" if image.mode == "I" else "floating-point numbers"
        raise DataError(f"{_title(item)} holds {bits} of unknown range. Save 8 or 16 bits per channel.")
    return (image.convert("RGBA") if "transparency" in image.info else image).convert("RGB")


def _title(item: Item) -> str:
    return f"{item.path}: " + ("the image" if item.id is None else f"image id {item.id}")


def _pillow(wanted_by: Path | str) -> Any:
    return require("PIL.Image", "cli", str(wanted_by))


@contextmanager
def opened(item: Item) -> Iterator[Image]:
    """Yield an opened image; turn anything that its decoder raises about a damaged file into one error."""
    pillow = _pillow(item.path)
    try:
        with pillow.open(item.path, formats=FORMATS) as image:
            yield image
    except DataError:
        raise
    except Exception as error:
        message = (isinstance(error, OSError) and error.strerror) or str(error)
        if isinstance(error, pillow.UnidentifiedImageError):
            formats = f"it is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
            message = formats if item.path.stat().st_size else "the file is empty"
        reason = " ".join(message.split()).rstrip(".") or type(error).__name__
        raise DataError(f"{_title(item)} cannot be read ({reason}). Replace or remove it.") from error


def thumbnail(image: Image) -> str:
    """Return an image of any size as a small PNG in a data URI."""
    image = image.copy()
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
