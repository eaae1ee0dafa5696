"""timm networks keep the contract."""

from __future__ import annotations

from typing import Any

import timm
import torch

import onespike
from contract.conversion_contract import (
    Case,
    ConversionContract,
    check_folding,
    distance,
    images,
    randomize_,
    run,
)


def create(name: str, size: int, **settings: Any) -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    return randomize_(timm.create_model(name, num_classes=7, **settings)), images(size)


class TestViT(ConversionContract):
    inputs = ("patch_embed.proj:conv0_input",)
    heads = ("head:linear0_input",)
    spiking, softmax = 16, 2

    @classmethod
    def build(cls):
        return create(
            "vit_tiny_patch16_224", 32, img_size=32, patch_size=8, depth=2, embed_dim=24, num_heads=2
        )


class TestViTUnfused(ConversionContract):
    inputs, heads = TestViT.inputs, TestViT.heads
    spiking, softmax = 8, 1

    @classmethod
    def build(cls):
        model, batches = TestViT.build()
        model.blocks = model.blocks[:1]
        model.blocks[0].attn.fused_attn = False
        return model, batches


def test_fused_and_unfused_attention_have_the_same_sites_and_thresholds():
    fused, batches = TestViT.build()
    unfused, _ = TestViT.build()
    for block in unfused.blocks:
        block.attn.fused_attn = False
    ours, theirs = onespike.calibrate(fused, batches), onespike.calibrate(unfused, batches)
    assert list(ours) == list(theirs)
    for site, threshold in ours.items():
        same = theirs[site]
        assert (threshold.role, threshold.shape, threshold.macs) == (same.role, same.shape, same.macs)
        torch.testing.assert_close(threshold.positive, same.positive, rtol=1e-3, atol=0)
        torch.testing.assert_close(threshold.negative, same.negative, rtol=1e-3, atol=0)
    one, other = onespike.convert(fused, ours), onespike.convert(unfused, ours)
    assert distance(run(one, batches[0]), run(other, batches[0])) < 0.02
    assert distance(run(one, batches[0]), run(fused, batches[0])) > 0.02


class TestEva02(ConversionContract):
    inputs = ("patch_embed.proj:conv0_input",)
    heads = ("head:linear0_input",)
    spiking, softmax = 11, 1  # query, key, value and the two halves of the gated MLP have a product each

    @classmethod
    def build(cls):
        return create("eva02_base_patch14_224", 28, img_size=28, depth=1, embed_dim=24, num_heads=2)


class TestEvaGiant(ConversionContract):
    inputs = ("patch_embed.proj:conv0_input",)
    heads = ("head:linear0_input",)
    spiking, softmax = 16, 2

    @classmethod
    def build(cls):
        return create("eva_giant_patch14_336", 28, img_size=28, depth=2, embed_dim=32, num_heads=2)


class TestBeit(ConversionContract):
    inputs = ("patch_embed.proj:conv0_input",)
    heads = ("head:linear0_input",)
    spiking, softmax = 8, 1

    @classmethod
    def build(cls):
        return create("beit_base_patch16_224", 32, img_size=32, depth=1, embed_dim=24, num_heads=2)


class TestSwin(ConversionContract):
    inputs = ("patch_embed.proj:conv0_input",)
    heads = ("head.fc:linear0_input",)
    spiking, softmax = 25, 3  # three blocks, one of them shifted, and the merging of patches

    @classmethod
    def build(cls):
        return create(
            "swin_tiny_patch4_window7_224", 32, img_size=32, window_size=4, depths=(2, 1), embed_dim=16,
            num_heads=(2, 2),
        )  # fmt: skip


class TestConvNeXt(ConversionContract):
    inputs = ("stem.0:conv0_input",)
    heads = ("head.fc:linear0_input",)
    spiking, softmax = 15, 0

    @classmethod
    def build(cls):
        return create("convnext_atto", 32, depths=(1, 1, 1, 1), dims=(8, 8, 16, 16))


class TestResNet(ConversionContract):
    inputs = ("conv1:conv0_input",)
    heads = ("fc:linear0_input",)
    spiking, softmax = 11, 0

    @classmethod
    def build(cls):
        return create("resnet18", 32, layers=(1, 1, 1, 1))

    def test_batchnorm_is_folded(self, case: Case) -> None:
        check_folding(case)
