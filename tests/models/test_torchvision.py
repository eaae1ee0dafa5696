"""torchvision networks keep the contract."""

from __future__ import annotations

from functools import partial

from families import contract
from torchvision.models import resnet18
from torchvision.models.vision_transformer import VisionTransformer

from contract.conversion_contract import Case, check_folding, images

SMALL = dict(image_size=32, patch_size=8, num_layers=1, num_heads=2, hidden_dim=24, mlp_dim=48, num_classes=7)
TestViT = contract(
    partial(VisionTransformer, **SMALL), partial(images, 32),
    inputs=("conv_proj:conv0_input",), heads=("heads.head:linear0_input",), spiking=8, softmax=1,
)  # fmt: skip
ResNet18 = contract(
    partial(resnet18, num_classes=7), partial(images, 32),
    inputs=("conv1:conv0_input",), heads=("fc:linear0_input",), spiking=19, softmax=0,
)  # fmt: skip


class TestResNet18(ResNet18):
    def test_batchnorm_is_folded(self, case: Case) -> None:
        check_folding(case)
