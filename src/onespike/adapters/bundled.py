"""`bundled:NAME`: the small networks that ship with onespike; the scripts in `training/` trained them."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
SIDE, STRIDE, PROTOTYPES = 64, 4, 16
"""Of a scene and of the places where the detector may find an object, in pixels; and how many masks it mixes."""
SCENE_CLASSES = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
IN_PACKAGE = Path(__file__).parent / "bundled"
IN_REPOSITORY = Path(__file__).parents[3] / "weights"


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


class ConvStem(nn.Sequential):
    """Three 3×3 convolutions that turn a 32×32 image into an 8×8 grid of tokens."""

    def __init__(self, width: int) -> None:
        shapes = ((3, width // 4, 1), (width // 4, width // 2, 2), (width // 2, width, 2))
        super().__init__(*(layer for shape in shapes for layer in convolution(*shape)))
        self.num_features = width


def cifar10_vit() -> nn.Module:
    """A timm VisionTransformer for 32×32 images behind a convolutional stem."""
    from timm.layers.hybrid_embed import HybridEmbed
    from timm.models.vision_transformer import VisionTransformer

    embedding: Any = partial(HybridEmbed, backbone=ConvStem(128), feature_size=8, proj=True)
    return VisionTransformer(
        img_size=32, patch_size=1, num_classes=10, embed_dim=128, depth=6, num_heads=4, mlp_ratio=2.0,
        class_token=False, global_pool="avg", fc_norm=True, embed_layer=embedding,
    )  # fmt: skip


def cifar10_resnet18() -> nn.Module:
    """Full-width ResNet-18 (64, 128, 256, 512 channels) with a 3×3 stem for 32×32 images."""
    from timm import create_model

    network: nn.Module = create_model("resnet18", num_classes=10)
    network.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    return network


class Block(nn.Module):
    """A transformer block with norms before attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        mlp: Tensor = self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return x + mlp


class SceneBackbone(nn.Module):
    """An image → features at stride 2, 4 and 8; tokens at stride 8 attend to each other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stage1, self.stage2 = convolution(3, width // 4, 2), convolution(width // 4, width // 2, 2)
        self.refine, self.stage3 = convolution(width // 2, width // 2), convolution(width // 2, width, 2)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (SIDE // 8) ** 2, width))
        self.blocks = nn.Sequential(*[Block(width, 4) for _ in range(3)])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fine = self.stage1(images)
        middle = self.stage2(fine)
        middle = middle + self.refine(middle)
        coarse = self.stage3(middle)
        tokens = self.blocks(coarse.flatten(2).transpose(1, 2) + self.positions)
        return fine, middle, tokens.transpose(1, 2).reshape(coarse.shape)


class SceneDetector(nn.Module):
    """Boxes and masks of clothes on scenes: images (batch, 3, 64, 64) → the best detections per image, as a dictionary.

    A dense head on a feature pyramid: each place at stride 4 predicts which class has its center there, the extent of
    the box, and how to mix the prototypes into a mask.
    """

    def __init__(self, width: int = 64, detections: int = 20) -> None:
        super().__init__()
        self.detections, middle = detections, 2 * width // 3
        self.backbone = SceneBackbone(width)
        self.lateral4, self.lateral8 = nn.Conv2d(width // 2, middle, 1), nn.Conv2d(width, middle, 1)
        self.fuse, self.tower = convolution(middle, middle), convolution(middle, middle)
        self.classes = nn.Conv2d(middle, len(SCENE_CLASSES), 1)
        self.boxes, self.coefficients = nn.Conv2d(middle, 4, 1), nn.Conv2d(middle, PROTOTYPES, 1)
        self.lateral2, self.down = nn.Conv2d(width // 4, width // 4, 1), nn.Conv2d(middle, width // 4, 1)
        self.mix = convolution(width // 4, width // 4)
        self.prototypes = nn.Conv2d(width // 4, PROTOTYPES, 1)
        nn.init.constant_(self.classes.bias, -4.0)  # type: ignore[arg-type]

    def maps(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return class logits, distances to the sides of the box, coefficients (all at stride 4), prototypes (stride 2)."""
        fine, middle, coarse = self.backbone(images)
        level = self.fuse(self.lateral4(middle) + F.interpolate(self.lateral8(coarse), scale_factor=2))
        place = self.tower(level)
        detail = F.interpolate(self.down(level), scale_factor=2) + self.lateral2(fine)
        distances = F.softplus(self.boxes(place)) * STRIDE
        return self.classes(place), distances, self.coefficients(place), self.prototypes(self.mix(detail))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return `scores`, `labels`, `boxes` (x0, y0, x1, y1 in pixels) and `masks` (logits at stride 2)."""
        classes, distances, coefficients, prototypes = self.maps(images)
        heat = classes.sigmoid()
        heat = heat * (heat == F.max_pool2d(heat, 3, 1, 1))  # a peak is larger than its neighbors
        scores, chosen = heat.flatten(1).topk(self.detections)
        places = heat.shape[-2] * heat.shape[-1]
        labels, place = chosen // places, chosen % places
        boxes = box_at(distances, place)
        mixing = coefficients.flatten(2).transpose(1, 2)
        mixing = mixing.gather(1, place[..., None].expand(-1, -1, PROTOTYPES))
        masks = (mixing @ prototypes.flatten(2)).view(*place.shape, *prototypes.shape[-2:])
        return {"scores": scores, "labels": labels, "boxes": boxes, "masks": masks}


def box_at(distances: Tensor, place: Tensor) -> Tensor:
    """Return the boxes (x0, y0, x1, y1) at these places of the map of distances."""
    columns = distances.shape[-1]
    sides = distances.flatten(2).transpose(1, 2).gather(1, place[..., None].expand(-1, -1, 4))
    center = torch.stack([place % columns, place // columns], -1) * STRIDE + STRIDE / 2
    return torch.cat([center - sides[..., :2], center + sides[..., 2:]], -1).clamp(0, SIDE)


SCENES = "scenes"
NETWORKS = {"cifar10-vit": cifar10_vit, "cifar10-resnet18": cifar10_resnet18, SCENES: SceneDetector}


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
        words = f"resize {SIDE}×{SIDE} bilinear, mean 0.5, std 0.5"
        reading = Reading(lambda image: pixels_of(image, SIDE) / 127.5 - 1, words)
        objects = Detection(scene_results, scene_objects, masks=True, class_names=SCENE_CLASSES)
        return LoadedModel(model, source.spec, reading, objects, weights, "sdpa")
    words = f"resize 32×32 bilinear, {describe_normalization(CIFAR10_MEAN, CIFAR10_STD)}"
    reading = Reading(lambda image: normalized(pixels_of(image, 32), CIFAR10_MEAN, CIFAR10_STD), words)
    task, attention = Classification(CIFAR10_CLASSES), set_attention_(model, source.attention)
    accuracy = None
    if shipped:
        from safetensors import safe_open

        with safe_open(shipped, framework="pt") as file:  # the training script wrote the accuracy into it
            accuracy = float(file.metadata()["test_accuracy"])
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
    at = (torch.arange(logits.shape[-1], device=logits.device) + 0.5) * (SIDE / logits.shape[-1])
    masks = logits.sigmoid() * _inside(output["boxes"].detach(), at, at)
    names = ("scores", "labels", "boxes")
    return [{**{name: output[name][row] for name in names}, "masks": masks[row]} for row in range(len(masks))]


def scene_results(output: dict[str, Tensor], images: Records) -> Iterator[dict[str, Any]]:
    """Return COCO results of the detector's output: masks at the image's size, cut to their boxes."""
    entries = []
    for row, (height, width) in enumerate((image["height"], image["width"]) for image in images):
        masks = F.interpolate(output["masks"][row][None], size=(height, width), mode="bilinear")[0] > 0
        boxes = output["boxes"][row] * torch.tensor([width, height, width, height]) / SIDE
        masks = masks.cpu() & _inside(boxes, torch.arange(height) + 0.5, torch.arange(width) + 0.5)
        facts = {name: output[name][row] for name in ("scores", "labels")}
        entries.append({**facts, "boxes": boxes, "masks": masks[:, None]})
    return listed(entries, images)


def _inside(boxes: Tensor, ys: Tensor, xs: Tensor) -> Tensor:
    """Return which places of a grid lie within each box."""
    x0, y0, x1, y1 = boxes[..., None, None, :].unbind(-1)
    return (xs > x0) & (xs < x1) & (ys[:, None] > y0) & (ys[:, None] < y1)
