"""The small detector that ships with onespike: boxes and masks of clothes on 64×64 scenes.

A convolutional stem, three transformer blocks at stride 8, a feature pyramid of two levels and a dense head. Each
place at stride 4 predicts which class has its center there, the extent of the box, and how to mix the prototypes
into a mask. `training/train_scenes.py` trains it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE, STRIDE, PROTOTYPES = 64, 4, 16
SCENE_CLASSES = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


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
    """Images (batch, 3, 64, 64) → the best detections per image, as a dictionary."""

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
