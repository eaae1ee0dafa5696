"""The CIFAR-10 ResNets of He et al. (6n + 2 layers, shortcuts without weights), for checkpoints of public training runs.

Parameter names are those of the checkpoints: `conv1`, `bn1`, `layer1.0.conv1` … `layer3.2.bn2`, `linear`.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from onespike.adapters import LoadedModel, Reading
from onespike.adapters.bundled import CIFAR10_CLASSES
from onespike.tasks import Classification

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""What these checkpoints were trained with."""


class Block(nn.Module):
    """Two 3×3 convolutions; where the grid shrinks, the shortcut takes every second pixel and pads channels with 0."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.added = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        side = self.added // 2
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, side, side))
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + shortcut)


class CifarResNet(nn.Module):
    """3×3 stem, three stages of 16, 32 and 64 channels, mean over the grid, classifier."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        blocks = (layers - 2) // 6
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        for number, (inputs, outputs) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
            first = Block(inputs, outputs, 1 if number == 1 else 2)
            rest = (Block(outputs, outputs, 1) for _ in range(blocks - 1))
            setattr(self, f"layer{number}", nn.Sequential(first, *rest))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


def load(layers: int, file: Path) -> LoadedModel:
    """The network with a checkpoint's weights, and the transform that it was trained with."""
    model = CifarResNet(layers)
    counters = {
        name: value for name, value in model.state_dict().items() if name.endswith("num_batches_tracked")
    }
    model.load_state_dict(
        counters | load_file(file)
    )  # the files leave out these counters, which only training reads
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))

    def transform(image) -> Tensor:
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(32, 32, 3)
        return (pixels.permute(2, 0, 1).float() / 255 - mean) / std

    reading = Reading(transform, "ImageNet mean and deviation")
    return LoadedModel(model.eval(), f"resnet{layers}", reading, Classification(CIFAR10_CLASSES), file.name)
