"""`bundled:NAME`: the small networks that ship with onespike; the scripts in `training/` trained them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onespike.adapters import scenes
from onespike.adapters.base import LoadedModel, Reading, Source
from onespike.adapters.checkpoints import load_checkpoint_
from onespike.adapters.detection import Records, listed
from onespike.adapters.preprocessing import NORMALIZATIONS, describe_normalization, normalized, pixels_of
from onespike.adapters.timm import set_attention_
from onespike.errors import LoadError, require, unknown
from onespike.tasks import Classification, Detection
from onespike.tasks.objects import Objects

CIFAR10_MEAN, CIFAR10_STD = NORMALIZATIONS["CIFAR-10"]
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
SIDE = 32
IN_PACKAGE = Path(__file__).parent / "bundled"
IN_REPOSITORY = Path(__file__).parents[3] / "weights"


class ConvStem(nn.Sequential):
    """Three 3×3 convolutions that turn a 32×32 image into an 8×8 grid of tokens."""

    def __init__(self, width: int) -> None:
        shapes = ((3, width // 4, 1), (width // 4, width // 2, 2), (width // 2, width, 2))
        super().__init__(*(layer for shape in shapes for layer in scenes.convolution(*shape)))
        self.num_features = width


def cifar10_vit(**overrides: Any) -> nn.Module:
    """A timm VisionTransformer for 32×32 images behind a convolutional stem."""
    from timm.layers.hybrid_embed import HybridEmbed
    from timm.models.vision_transformer import VisionTransformer

    width = 128
    settings: dict[str, Any] = dict(
        img_size=32, patch_size=1, num_classes=10, embed_dim=width, depth=6, num_heads=4, mlp_ratio=2.0,
        class_token=False, global_pool="avg", fc_norm=True,
        embed_layer=partial(HybridEmbed, backbone=ConvStem(width), feature_size=8, proj=True),
    )  # fmt: skip
    return VisionTransformer(**(settings | overrides))


def cifar10_resnet18() -> nn.Module:
    """Full-width ResNet-18 (64, 128, 256, 512 channels) with a 3×3 stem for 32×32 images."""
    from timm import create_model

    network: nn.Module = create_model("resnet18", num_classes=10)
    network.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    return network


SCENES = "scenes"
NETWORKS = {"cifar10-vit": cifar10_vit, "cifar10-resnet18": cifar10_resnet18, SCENES: scenes.SceneDetector}


def names() -> Sequence[str]:
    return sorted(NETWORKS)


def has_weights(name: str) -> bool:
    return True


def load(name: str, source: Source) -> LoadedModel:
    """Load a bundled network; by default with the weights that ship with it."""
    if name not in NETWORKS:
        raise unknown("bundled model", name, NETWORKS)
    if name != SCENES:
        require("timm", "timm", source.spec)
    shipped = None if source.random or source.file else weights_file(name)
    model, weights = NETWORKS[name](), "bundled" if shipped else source.describe()
    if file := shipped or source.file:
        load_checkpoint_(model, file)
    if name == SCENES:
        words = f"resize {scenes.SIDE}×{scenes.SIDE} bilinear, mean 0.5, std 0.5"
        reading = Reading(lambda image: pixels_of(image, scenes.SIDE) / 127.5 - 1, words)
        objects = Detection(scene_results, scene_objects, masks=True, class_names=scenes.SCENE_CLASSES)
        return LoadedModel(model, source.spec, reading, objects, weights, "sdpa")
    words = f"resize {SIDE}×{SIDE} bilinear, {describe_normalization(CIFAR10_MEAN, CIFAR10_STD)}"
    reading = Reading(lambda image: normalized(pixels_of(image, SIDE), CIFAR10_MEAN, CIFAR10_STD), words)
    task, attention = Classification(CIFAR10_CLASSES), set_attention_(model, source.attention)
    if shipped is None:
        return LoadedModel(model, source.spec, reading, task, weights, attention)
    from safetensors import safe_open

    with safe_open(shipped, framework="pt") as opened:  # the training script wrote the accuracy into the file
        accuracy = float(opened.metadata()["test_accuracy"])
    return LoadedModel(model, source.spec, reading, task, weights, attention, accuracy)


def weights_file(name: str) -> Path:
    """Return the file of a bundled network's weights: in the package, or in the repository for the larger one."""
    for folder in (IN_PACKAGE, IN_REPOSITORY):
        if (file := folder / f"{name}.safetensors").is_file():
            return file
    raise LoadError(
        f"bundled:{name}: its weights are not part of this installation. Clone the repository, where they are "
        f"weights/{name}.safetensors, and install from there, or give them with weights=FILE."
    )


def scene_objects(output: dict[str, Tensor]) -> list[Objects]:
    """Return each image's objects as tensors; masks are cut to their boxes, as in `scene_results`."""
    logits = output["masks"]
    at = (torch.arange(logits.shape[-1], device=logits.device) + 0.5) * (scenes.SIDE / logits.shape[-1])
    masks = logits.sigmoid() * _inside(output["boxes"].detach(), at, at)
    names = ("scores", "labels", "boxes")
    return [{**{name: output[name][row] for name in names}, "masks": masks[row]} for row in range(len(masks))]


def scene_results(output: dict[str, Tensor], images: Records) -> Iterator[dict[str, Any]]:
    """Return COCO results of the detector's output: masks at the image's size, cut to their boxes."""

    def entry(row: int, height: int, width: int) -> dict[str, Tensor]:
        masks = F.interpolate(output["masks"][row][None], size=(height, width), mode="bilinear")[0] > 0
        boxes = output["boxes"][row] * torch.tensor([width, height, width, height]) / scenes.SIDE
        masks = masks.cpu() & _inside(boxes, torch.arange(height) + 0.5, torch.arange(width) + 0.5)
        facts = {name: output[name][row] for name in ("scores", "labels")}
        return {**facts, "boxes": boxes, "masks": masks[:, None]}

    return listed((entry(i, image["height"], image["width"]) for i, image in enumerate(images)), images)


def _inside(boxes: Tensor, ys: Tensor, xs: Tensor) -> Tensor:
    """Return which places of a grid lie within each box."""
    x0, y0, x1, y1 = boxes[..., None, None, :].unbind(-1)
    return (xs > x0) & (xs < x1) & (ys[:, None] > y0) & (ys[:, None] < y1)
