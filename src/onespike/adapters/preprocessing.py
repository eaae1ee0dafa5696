"""Mean, deviation, size and crop of an image transform: measured from the transform, and replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from onespike.adapters.base import LoadedModel, Normalization
from onespike.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

LARGEST_SIDE = 2**13
NORMALIZATIONS: dict[str, Normalization] = {
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "CLIP": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}
"""The normalizations of published networks, which are often confused with each other."""


def pixels_of(image: Image, side: int | None = None) -> Tensor:
    """Return an RGB image as (channels, height, width), from 0 to 255; `side` makes a square of it where it is none."""
    from PIL.Image import Resampling

    if side is not None and image.size != (side, side):
        image = image.resize((side, side), Resampling.BILINEAR)
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.view(image.height, image.width, 3).permute(2, 0, 1).float()


def describe_normalization(mean: Sequence[float], std: Sequence[float]) -> str:
    return f"mean {' '.join(f'{m:g}' for m in mean)}, std {' '.join(f'{s:g}' for s in std)}"


def normalized(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    return (pixels / 255 - _channels(mean)) / _channels(std)


def _channels(values: Sequence[float]) -> Tensor:
    return torch.tensor(values).view(3, 1, 1)


def normalization(transform: Callable[..., Any], size: tuple[int, int] = (256, 256)) -> Normalization | None:
    """Return what a transform subtracts and divides by, from a black and a white image; None if it does neither.

    A transform of the user's own may take images of one size only: give one that it has taken.

    >>> mean, std = normalization(lambda image: normalized(pixels_of(image, 32), *NORMALIZATIONS["CIFAR-10"]))
    >>> describe_normalization(mean, std)
    'mean 0.4914 0.4822 0.4465, std 0.247 0.2435 0.2616'
    """
    from PIL import Image

    black, white = (transform(Image.new("RGB", size, color)) for color in ("black", "white"))
    if not isinstance(black, Tensor) or black.dim() != 3 or len(black) != 3:
        return None
    low, high = black.flatten(1).double().mean(1), white.flatten(1).double().mean(1)
    if bool((high - low <= 0).any()):
        return None
    std = 1 / (high - low)
    mean, deviation = ([round(float(v), 6) + 0.0 for v in values] for values in (-low * std, std))
    return tuple(mean), tuple(deviation)


def exchanged(x: Tensor, old: Normalization, new: Normalization) -> Tensor:
    """Return an input (or a batch) as the other normalization would have given it."""
    (mean, std), (other_mean, other_std) = (map(_channels, n) for n in (old, new))
    return (x * std + mean - other_mean) / other_std


def renormalized(loaded: LoadedModel, mean: Sequence[float], std: Sequence[float]) -> LoadedModel:
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise UsageError("a normalization is three means and three positive deviations: mean=0.5,0.5,0.5.")
    reading, in_python = loaded.reading, loaded.spec.startswith("python:")
    old = None if in_python else normalization(reading.transform)
    if old is None:
        reason = "is your own: normalize there" if in_python else "has no mean and deviation to replace"
        raise UsageError(f"{loaded.spec}: its transform {reason}. Leave out mean=.")
    new = (tuple(float(m) for m in mean), tuple(float(s) for s in std))
    changed = dataclasses.replace(
        reading,
        transform=lambda image: exchanged(reading.transform(image), old, new),
        preprocessing=f"{reading.preprocessing}, then {describe_normalization(*new)} instead",
        replaced=reading.replaced or old,
    )
    return dataclasses.replace(loaded, reading=changed)


def resized(loaded: LoadedModel, resize: int | None, crop: int | None) -> LoadedModel:
    """Return the network for the middle `crop` pixels (or its own crop) of images with a shorter side of `resize`."""
    from PIL import Image

    reading = loaded.reading
    usual, parts = reading.transform(Image.new("RGB", (64, 48))), normalization(reading.transform)
    if parts is None or not isinstance(usual, Tensor) or usual.dim() != 3:
        raise UsageError(f"{loaded.spec}: its transform gives no fixed size. Leave out resize= and crop=.")
    crop = usual.shape[-1] if crop is None else crop
    resize = crop if resize is None else resize
    if not 1 <= crop <= resize <= LARGEST_SIDE:
        raise UsageError(
            f"resize= is the shorter side and crop= a part of it, from 1 to {LARGEST_SIDE} pixels, not {resize} and "
            f"{crop}. Give for example resize=256 crop=224."
        )
    kind = "bicubic" if "bicubic" in reading.preprocessing else "bilinear"

    def cropped(image: Image.Image) -> Tensor:
        # the longer side is rounded down, as torchvision does
        width, height = (int(resize * side / min(image.size)) for side in image.size)
        left, top = (round((side - crop) / 2.0) for side in (width, height))
        scaled = image.resize((width, height), Image.Resampling[kind.upper()]).convert("RGB")
        return normalized(pixels_of(scaled.crop((left, top, left + crop, top + crop))), *parts)

    words = f"resize {resize} {kind}, center crop {crop}, {describe_normalization(*parts)}"
    changed = dataclasses.replace(reading, transform=cropped, preprocessing=words, size=(resize, crop))
    return dataclasses.replace(loaded, reading=changed)
