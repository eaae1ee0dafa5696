"""Size and crop of an image transform, replaced for checkpoints that need other preprocessing."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from onespike.adapters.base import LoadedModel, describe_normalization
from onespike.adapters.normalize import Normalization, normalization
from onespike.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

LARGEST = 2**13


def resized(loaded: LoadedModel, resize: int | None, crop: int | None) -> LoadedModel:
    """Return the same network for the middle `crop` pixels of images whose shorter side is `resize`.

    The default of `crop` is the crop of the network's transform, and that of `resize` is the same number.
    Interpolation, mean and deviation stay.
    """
    from PIL import Image

    own, known = loaded.transform(Image.new("RGB", (64, 48))), normalization(loaded.transform)
    if known is None or not isinstance(own, Tensor) or own.dim() != 3:
        raise UsageError(
            f"{loaded.spec}: its transform makes no image of one size. Leave out --resize and --crop."
        )
    crop = own.shape[-1] if crop is None else crop
    resize = crop if resize is None else resize
    if not 1 <= crop <= resize <= LARGEST:
        raise UsageError(
            f"--resize is the shorter side and --crop a part of it, from 1 to {LARGEST} pixels, not {resize} and {crop}. "
            "Give for example --resize 256 --crop 224."
        )
    kind = "bicubic" if "bicubic" in loaded.preprocessing else "bilinear"
    return dataclasses.replace(
        loaded,
        transform=partial(_transform, resize=resize, crop=crop, kind=kind, known=known),
        preprocessing=f"resize {resize} {kind}, center crop {crop}, {describe_normalization(*known)}",
        size=(resize, crop),
    )


def _transform(image: Image, resize: int, crop: int, kind: str, known: Normalization) -> Tensor:
    from PIL import Image

    width, height = image.size
    short = min(width, height)
    # the longer side is rounded down, as torchvision does
    size = (int(resize * width / short), int(resize * height / short))
    scaled = image.resize(size, Image.Resampling.BICUBIC if kind == "bicubic" else Image.Resampling.BILINEAR)
    left, top = (round((side - crop) / 2.0) for side in size)
    cut = scaled.convert("RGB").crop((left, top, left + crop, top + crop))
    pixels = torch.frombuffer(bytearray(cut.tobytes()), dtype=torch.uint8).view(crop, crop, 3)
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in known)
    return (pixels.permute(2, 0, 1).float() / 255 - mean) / std
