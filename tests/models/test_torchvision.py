"""torchvision networks keep the contract."""

from __future__ import annotations

import torch
from torchvision.models import resnet18
from torchvision.models.vision_transformer import VisionTransformer

from contract.conversion_contract import Case, ConversionContract, check_folding, images, randomize_


class TestViT(ConversionContract):
    inputs = ("conv_proj:conv0_input",)
    heads = ("heads.head:linear0_input",)
    spiking, softmax = 8, 1

    @classmethod
    def build(cls):
        torch.manual_seed(0)
        model = VisionTransformer(
            image_size=32, patch_size=8, num_layers=1, num_heads=2, hidden_dim=24, mlp_dim=48, num_classes=7
        )
        return randomize_(model), images(32)


class TestResNet18(ConversionContract):
    inputs = ("conv1:conv0_input",)
    heads = ("fc:linear0_input",)
    spiking, softmax = 19, 0

    @classmethod
    def build(cls):
        return randomize_(resnet18(num_classes=7)), images(32)

    def test_batchnorm_is_folded(self, case: Case) -> None:
        check_folding(case)
