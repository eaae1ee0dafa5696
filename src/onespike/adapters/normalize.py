"""Mean and standard deviation of an image transform: measured from the transform, and replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from onespike.adapters.base import LoadedModel, describe_normalization
from onespike.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

Normalization = tuple[tuple[float, ...], tuple[float, ...]]

KNOWN: dict[str, Normalization] = {
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "CLIP": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}
"""The normalizations of published networks, which are often confused with each other."""


def normalization(
    transform: Callable[[Image], Tensor], size: tuple[int, int] = (256, 256)
) -> Normalization | None:
    """Return what a transform subtracts and divides by, from a black and a white image; None if it does neither.

    A transform of the user's own may take images of one size only: give one that it has taken.

    >>> from onespike.adapters.bundled import to_input
    >>> mean, std = normalization(to_input)
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
    (mean, std), (other_mean, other_std) = (
        tuple(torch.tensor(part).view(3, 1, 1) for part in n) for n in (old, new)
    )
    return (x * std + mean - other_mean) / other_std


def renormalized(loaded: LoadedModel, mean: Sequence[float], std: Sequence[float]) -> LoadedModel:
    """Return the same network with another mean and standard deviation."""
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise UsageError(
            "a normalization is three means and three positive deviations, such as --mean 0.5,0.5,0.5."
        )
    if loaded.spec.startswith("python:"):
        raise UsageError(f"{loaded.spec}: its transform is your own. Normalize there, and leave out --mean.")
    old, transform = normalization(loaded.transform), loaded.transform
    if old is None:
        raise UsageError(
            f"{loaded.spec}: its transform has no mean and deviation to replace. Leave out --mean."
        )
    new = (tuple(float(m) for m in mean), tuple(float(s) for s in std))
    return dataclasses.replace(
        loaded,
        transform=lambda image: exchanged(transform(image), old, new),
        preprocessing=f"{loaded.preprocessing}, then {describe_normalization(*new)} instead",
        replaced=loaded.replaced or old,
    )
