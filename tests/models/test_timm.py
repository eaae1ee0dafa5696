"""Networks of timm and torchvision keep the contract."""

from __future__ import annotations

from functools import partial
from typing import Any

import timm
from families import contract
from torchvision.models import resnet18
from torchvision.models.vision_transformer import VisionTransformer

from contract.conversion_contract import Case, ConversionContract, check_folding, images

PATCH, HEAD = ("patch_embed.proj:conv0_input",), ("head:linear0_input",)


def network(name: str, size: int, spiking: int, softmax: int, settings: dict[str, Any], **facts: Any) -> Any:
    facts = {"inputs": PATCH, "heads": HEAD, **facts, "spiking": spiking, "softmax": softmax}
    make = partial(timm.create_model, name, num_classes=7, **settings)
    return contract(make, partial(images, size), **facts)


SMALL = dict(depth=1, embed_dim=24, num_heads=2)
TestViT = network("vit_tiny_patch16_224", 32, 16, 2, {**SMALL, "img_size": 32, "patch_size": 8, "depth": 2})
# query, key, value and the two halves of the gated MLP have a product each
TestEva02 = network("eva02_base_patch14_224", 28, 11, 1, {**SMALL, "img_size": 28})
TestEvaGiant = network(
    "eva_giant_patch14_336", 28, 16, 2, dict(img_size=28, depth=2, embed_dim=32, num_heads=2)
)
TestBeit = network("beit_base_patch16_224", 32, 8, 1, {**SMALL, "img_size": 32})
TestSwin = network(  # three blocks, one of them shifted, and the merging of patches
    "swin_tiny_patch4_window7_224", 32, 25, 3,
    dict(img_size=32, window_size=4, depths=(2, 1), embed_dim=16, num_heads=(2, 2)), heads=("head.fc:linear0_input",),
)  # fmt: skip
TestConvNeXt = network(
    "convnext_atto", 32, 15, 0, dict(depths=(1, 1, 1, 1), dims=(8, 8, 16, 16)),
    inputs=("stem.0:conv0_input",), heads=("head.fc:linear0_input",),
)  # fmt: skip


class Residual(ConversionContract):
    def test_batchnorm_is_folded(self, case: Case) -> None:
        check_folding(case)


ENDS = dict(base=Residual, inputs=("conv1:conv0_input",), heads=("fc:linear0_input",))
TestResNet = network("resnet18", 32, 11, 0, {"layers": (1, 1, 1, 1)}, **ENDS)
TestTorchvisionResNet = contract(
    partial(resnet18, num_classes=7), partial(images, 32), **ENDS, spiking=19, softmax=0
)
VIT = dict(image_size=32, patch_size=8, num_layers=1, num_heads=2, hidden_dim=24, mlp_dim=48, num_classes=7)
TestTorchvisionViT = contract(
    partial(VisionTransformer, **VIT), partial(images, 32),
    inputs=("conv_proj:conv0_input",), heads=("heads.head:linear0_input",), spiking=8, softmax=1,
)  # fmt: skip
