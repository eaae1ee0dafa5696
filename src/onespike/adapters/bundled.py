"""`bundled:NAME`: the networks that onespike has trained and ships."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from onespike.adapters import scene_results, scenes
from onespike.adapters.base import LoadedModel, Source, adapter, describe_normalization, require
from onespike.adapters.checkpoints import load_checkpoint_
from onespike.adapters.detection import backbone_of
from onespike.adapters.networks import CIFAR10_CLASSES, CIFAR10_MEAN, CIFAR10_STD, NETWORKS, SCENES
from onespike.adapters.timm import set_attention_
from onespike.errors import LoadError, unknown
from onespike.tasks import Detection

if TYPE_CHECKING:
    from PIL.Image import Image

IN_PACKAGE = Path(__file__).parent / "bundled"
IN_REPOSITORY = Path(__file__).parents[3] / "weights"
SIDE = 32


@adapter("bundled", names=lambda: tuple(sorted(NETWORKS)), has_weights=lambda name: True)
def load(name: str, source: Source) -> LoadedModel:
    """Load a bundled network; by default with the weights that ship with it."""
    if name not in NETWORKS:
        raise unknown("bundled model", name, NETWORKS)
    spec = f"bundled:{name}"
    if name != SCENES:
        require("timm", "timm", spec)
    file = None if source.random else source.file or weights_file(name)
    model = NETWORKS[name]()
    if file:
        load_checkpoint_(model, file)
    shipped = file is not None and source.file is None
    if name == SCENES:
        return LoadedModel(
            model=model,
            spec=spec,
            transform=scene_results.to_input,
            preprocessing=f"resize {scenes.SIDE}×{scenes.SIDE} bilinear, mean 0.5, std 0.5",
            weights="bundled" if shipped else source.describe(),
            attention="sdpa",
            class_names=scenes.SCENE_CLASSES,
            task=Detection(scene_results.scene_results, scene_results.scene_objects, masks=True),
            backbone=backbone_of(model),
        )
    return LoadedModel(
        model=model,
        spec=spec,
        transform=to_input,
        preprocessing=f"resize {SIDE}×{SIDE} bilinear, {describe_normalization(CIFAR10_MEAN, CIFAR10_STD)}",
        weights="bundled" if shipped else source.describe(),
        attention=set_attention_(model, source.attention),
        class_names=CIFAR10_CLASSES,
        published_top1=_recorded_accuracy(file) if file and shipped else None,
    )


def weights_file(name: str) -> Path:
    """Return the file of a bundled network's weights: in the package, or in the repository for the larger one."""
    for folder in (IN_PACKAGE, IN_REPOSITORY):
        if (file := folder / f"{name}.safetensors").is_file():
            return file
    raise LoadError(
        f"bundled:{name}: its weights are not part of this installation. Clone the repository, where they are "
        f"weights/{name}.safetensors, and install from there, or give them with --weights FILE."
    )


def to_input(image: Image) -> Tensor:
    """Turn an RGB image into a normalized 3×32×32 tensor; images of that size are not resampled."""
    from PIL.Image import Resampling

    if image.size != (SIDE, SIDE):
        image = image.resize((SIDE, SIDE), Resampling.BILINEAR)
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(SIDE, SIDE, 3)
    mean, std = torch.tensor(CIFAR10_MEAN).view(3, 1, 1), torch.tensor(CIFAR10_STD).view(3, 1, 1)
    return (pixels.permute(2, 0, 1).float() / 255 - mean) / std


def _recorded_accuracy(file: Path) -> float | None:
    """Return the test accuracy that the training script wrote into the file."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        recorded = (opened.metadata() or {}).get("test_accuracy")
    return float(recorded) if recorded else None
