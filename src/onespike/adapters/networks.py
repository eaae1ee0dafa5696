"""The small networks that ship with onespike; the scripts in `training/` trained them."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from onespike.adapters.scenes import SceneDetector

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


class ConvStem(nn.Sequential):
    """Three 3×3 convolutions that turn a 32×32 image into an 8×8 grid of tokens."""

    def __init__(self, width: int) -> None:
        def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
            convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

        super().__init__(
            *block(3, width // 4, 1), *block(width // 4, width // 2, 2), *block(width // 2, width, 2)
        )
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
NETWORKS = {"cifar10-vit": cifar10_vit, "cifar10-resnet18": cifar10_resnet18, SCENES: SceneDetector}
