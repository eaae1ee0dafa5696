"""From a file to RGB pixels: what 8 bits cannot hold is rescaled or refused, never clipped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from onespike.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow's names of the formats that are read, regardless of file names; its other decoders stay unused."""

REMEDY = "Replace or remove it."


def decode(path: Path, what: str = "the image") -> Image:
    """Return an image file in RGB as stored: no EXIF rotation, alpha dropped, the high byte of 16-bit gray."""
    with _opened(path, what) as image:
        image.verify()  # checks checksums, if the format has them; the file must then be reopened
    with _opened(path, what) as image:
        return _rgb(image, path, what)


def stated_size(path: Path, what: str = "the image") -> tuple[int, int]:
    """Return width and height from the file's header."""
    with _opened(path, what) as image:
        return image.size


def _rgb(image: Image, path: Path, what: str) -> Image:
    frames: int = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # a camera's preview after the photograph is not an animation
        raise DataError(
            f"{path}: {what} has {frames} frames. Save the one that is meant as an image of its own."
        )
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        return _high_byte(image).convert("RGB")
    if image.mode in ("I", "F"):
        bits = "32-bit integers" if image.mode == "I" else "floating-point numbers"
        raise DataError(
            f"{path}: {what} holds {bits}, and does not say which of them is white. Save it with 8 or 16 bits per channel."
        )
    return (image.convert("RGBA") if "transparency" in image.info else image).convert("RGB")


def _high_byte(image: Image) -> Image:
    """Return 16-bit gray as 8-bit gray, as Pillow reads 16-bit color."""
    from PIL.Image import frombytes

    four = image.convert("I").tobytes()  # four bytes per pixel in the machine's byte order
    return frombytes("L", image.size, four[1 if sys.byteorder == "little" else 2 :: 4])


def require_pillow(wanted_by: Path | str) -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise DataError(
            f"{wanted_by}: reading images needs Pillow. Install it with: pip install 'onespike[cli]'"
        ) from error


@contextmanager
def _opened(path: Path, what: str) -> Iterator[Image]:
    """Yield an opened image; turn anything that its decoder raises about a damaged file into one error."""
    require_pillow(path)
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=FORMATS) as image:
            yield image
    except DataError:
        raise
    except UnidentifiedImageError as error:
        raise DataError(f"{path}: {what} cannot be read ({_contents(path)}). {REMEDY}") from error
    except Exception as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = " ".join(said.split()).rstrip(".") or type(error).__name__
        raise DataError(f"{path}: {what} cannot be read ({reason}). {REMEDY}") from error


def _contents(path: Path) -> str:
    return (
        f"it is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]}" if path.stat().st_size else "the file is empty"
    )
