"""Detectors of every family, small and with random weights: variable sizes, pyramids, NMS and sampling keep working."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision.models.detection import FCOS, FasterRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork
from transformers import (
    DeformableDetrConfig,
    DeformableDetrForObjectDetection,
    DetrConfig,
    DetrForObjectDetection,
    Mask2FormerConfig,
    Mask2FormerForUniversalSegmentation,
    ResNetConfig,
    RTDetrConfig,
    RTDetrForObjectDetection,
    RTDetrResNetConfig,
    SwinConfig,
    VitDetBackbone,
    VitDetConfig,
    YolosConfig,
    YolosForObjectDetection,
)

import onespike
from contract.conversion_contract import ConversionContract, images, randomize_
from onespike.adapters.scenes import SceneDetector
from onespike.conversion.network import table

# transformers still decorates some functions with torch's old compiler when its modules are imported
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")


class Eager(ConversionContract):
    """Detectors have control flow that follows their data: they are tested as they run, not as one graph."""

    test_every_neuron_takes_part_when_compiled = None
    test_compiles_as_one_graph_and_follows_the_scale = None
    test_exports = None


class Pyramid(nn.Module):
    """Two convolutional stages with BatchNorm and a feature pyramid over them."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.out_channels = width

        def stage(inputs: int, outputs: int) -> nn.Sequential:
            convolution = nn.Conv2d(inputs, outputs, 3, 4, 1, bias=False)
            return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())

        self.first, self.second = stage(3, 8), stage(8, 12)
        self.fpn = FeaturePyramidNetwork([8, 12], width)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        fine = self.first(x)
        return self.fpn({"0": fine, "1": self.second(fine)})


class EvaPyramid(nn.Module):
    """timm's EVA-02 as a plain backbone with one more level by pooling, as ViTDet has it."""

    out_channels = 24

    def __init__(self) -> None:
        super().__init__()
        self.body = timm.create_model(
            "eva02_tiny_patch14_224", img_size=64, patch_size=16, embed_dim=24, depth=2, num_heads=2,
            num_classes=0, dynamic_img_size=True,
        )  # fmt: skip

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        tokens = self.body.forward_features(x)[:, 1:]
        grid = tokens.transpose(1, 2).reshape(len(x), -1, x.shape[-2] // 16, x.shape[-1] // 16)
        return {"0": grid, "1": nn.functional.max_pool2d(grid, 2)}


def pictures() -> list[tuple[list[Tensor]]]:
    """Two batches of images that differ in size, as torchvision's detectors take them."""
    generator = torch.Generator().manual_seed(3)
    sizes = [[(48, 64), (64, 40)], [(56, 56), (64, 48)]]
    return [([torch.rand(3, h, w, generator=generator) for h, w in batch],) for batch in sizes]


SIZES = dict(min_size=64, max_size=64, num_classes=4)
FOUND = dict(box_score_thresh=0.0, box_detections_per_img=4, rpn_post_nms_top_n_test=8)


def anchors(levels: int = 2) -> AnchorGenerator:
    return AnchorGenerator(((16,), (32,))[:levels], ((1.0,),) * levels)


def two_stage(kind: type[FasterRCNN], backbone: nn.Module, **more: object) -> nn.Module:
    width = backbone.out_channels
    head, predictor = TwoMLPHead(width * 49, 16), FastRCNNPredictor(16, 4)
    settings = {**SIZES, "num_classes": None, **FOUND, "box_head": head, "box_predictor": predictor}
    return kind(backbone, rpn_anchor_generator=anchors(), **settings, **more)


class TestFasterRCNN(Eager):
    inputs = ("backbone.first.0:conv0_input",)
    heads = ("roi_heads.box_predictor.cls_score:linear0_input",)
    analog = ("roi_heads.box_roi_pool:torchvision.roi_align",)
    spiking, softmax = 11, 0

    @classmethod
    def build(cls):
        torch.manual_seed(0)
        return randomize_(two_stage(FasterRCNN, Pyramid())), pictures()


class TestMaskRCNN(Eager):
    inputs = ("backbone.first.0:conv0_input",)
    heads = (
        "roi_heads.box_predictor.cls_score:linear0_input",
        "roi_heads.mask_predictor.mask_fcn_logits:conv0_input",
    )
    analog = (
        "roi_heads.box_roi_pool:torchvision.roi_align",
        "roi_heads.mask_roi_pool:torchvision.roi_align",
    )
    spiking, softmax = 13, 0

    @classmethod
    def build(cls):
        torch.manual_seed(0)
        masks = dict(mask_head=MaskRCNNHeads(8, (8,), 1), mask_predictor=MaskRCNNPredictor(8, 8, 4))
        return randomize_(two_stage(MaskRCNN, Pyramid(), **masks)), pictures()


class TestEvaInFasterRCNN(Eager):
    inputs = ("backbone.body.patch_embed.proj:conv0_input",)
    heads = ("roi_heads.box_predictor.cls_score:linear0_input",)
    analog = ("roi_heads.box_roi_pool:torchvision.roi_align",)
    spiking, softmax = 22, 2

    @classmethod
    def build(cls):
        torch.manual_seed(0)
        return randomize_(two_stage(FasterRCNN, EvaPyramid())), pictures()


class TestRetinaNet(Eager):
    inputs = ("backbone.first.0:conv0_input",)
    heads = ("head.classification_head.cls_logits:conv0_input", "head.regression_head.bbox_reg:conv0_input")
    spiking, softmax = 13, 0

    @classmethod
    def build(cls):
        torch.manual_seed(0)
        model = RetinaNet(
            Pyramid(), anchor_generator=anchors(), score_thresh=0.0, detections_per_img=4, **SIZES
        )
        return randomize_(model), pictures()


class TestFCOS(Eager):
    inputs = ("backbone.first.0:conv0_input",)
    heads = (
        "head.classification_head.cls_logits:conv0_input",
        "head.regression_head.bbox_reg:conv0_input",
        "head.regression_head.bbox_ctrness:conv0_input",
    )
    spiking, softmax = 13, 0

    @classmethod
    def build(cls):
        torch.manual_seed(0)
        generator = AnchorGenerator(((8,), (16,)), ((1.0,),) * 2)
        model = FCOS(Pyramid(32), anchor_generator=generator, score_thresh=0.0, detections_per_img=4, **SIZES)
        return randomize_(model), pictures()


def named(size: int = 64) -> list[dict[str, Tensor]]:
    return [{"pixel_values": x} for x in images(size)]


DECODER = dict(
    d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
    encoder_ffn_dim=24, decoder_ffn_dim=24, num_queries=4, num_labels=3,
)  # fmt: skip
WIDTHS = dict(embedding_size=8, hidden_sizes=[8, 8, 12, 16], depths=[1, 1, 1, 1], layer_type="basic")
BACKBONE = dict(use_timm_backbone=False, use_pretrained_backbone=False)


def deformable(*owners: str) -> tuple[str, ...]:
    """What deformable attention does besides its projections."""
    return tuple(
        f"{owner}:{operation}" for owner in owners for operation in ("grid_sampler_2d", "weighted_sum")
    )


class TestDetr(Eager):
    inputs = ("model.backbone.model.embedder.embedder.convolution:conv0_input",)
    heads = ("class_labels_classifier:linear0_input", "bbox_predictor.layers.2:linear0_input")
    spiking, softmax, weights = 32, 2, 1

    @classmethod
    def build(cls):
        torch.manual_seed(0)
        config = DetrConfig(
            backbone_config=ResNetConfig(**WIDTHS, out_features=["stage4"]), **BACKBONE, **DECODER
        )
        return randomize_(DetrForObjectDetection(config)), named()


class TestRTDetr(Eager):
    """Its decoder samples with `grid_sample` and weighs the samples: both stay analog, between spiking products."""

    inputs = ("model.backbone.model.embedder.embedder.0.convolution:conv0_input",)
    heads = ("model.enc_score_head:linear0_input", "model.decoder.class_embed.0:linear0_input")
    analog = deformable("model.decoder.layers.0.encoder_attn.attn")
    spiking, softmax = 89, 2

    @classmethod
    def build(cls):
        torch.manual_seed(0)
        backbone = RTDetrResNetConfig(**WIDTHS, out_features=["stage2", "stage3", "stage4"])
        config = RTDetrConfig(
            backbone_config=backbone, encoder_hidden_dim=16, encoder_in_channels=[8, 12, 16], encoder_ffn_dim=24,
            encoder_attention_heads=2, d_model=16, decoder_in_channels=[16, 16, 16], decoder_ffn_dim=24,
            decoder_layers=1, decoder_attention_heads=2, num_queries=4, num_labels=3, num_denoising=0,
            use_timm_backbone=False,
        )  # fmt: skip
        return randomize_(RTDetrForObjectDetection(config)), named()


class TestDeformableDetr(Eager):
    """Every level of its pyramid is sampled, by the encoder and by the decoder."""

    inputs = ("model.backbone.model.embedder.embedder.convolution:conv0_input",)
    heads = (
        "class_embed.0:linear0_input",
        "bbox_embed.0.layers.2:linear0_input",
        "class_embed.1:linear0_input",
        "bbox_embed.1.layers.2:linear0_input",
    )
    analog = deformable(
        "model.encoder.layers.0.self_attn.attn",
        "model.decoder.layers.0.encoder_attn.attn",
        "model.decoder.layers.1.encoder_attn.attn",
    )
    spiking, softmax = 42, 1

    @classmethod
    def build(cls):
        torch.manual_seed(0)
        config = DeformableDetrConfig(
            backbone_config=ResNetConfig(**WIDTHS, out_features=["stage2", "stage3", "stage4"]), **BACKBONE,
            **{**DECODER, "d_model": 32, "decoder_layers": 2}, num_feature_levels=3, encoder_n_points=2, decoder_n_points=2,
        )  # fmt: skip
        model = DeformableDetrForObjectDetection(config)
        # its queries are an expanded parameter, on which torch's counter cannot hang a hook without gradients
        return randomize_(model).requires_grad_(False), named()


class TestYolos(Eager):
    inputs = ("vit.embeddings.patch_embeddings.projection:conv0_input",)
    heads = ("class_labels_classifier.layers.2:linear0_input", "bbox_predictor.layers.2:linear0_input")
    spiking, softmax = 14, 1

    @classmethod
    def build(cls):
        torch.manual_seed(0)
        config = YolosConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=[64, 64],
            patch_size=16, num_detection_tokens=4, num_labels=3,
        )  # fmt: skip
        return randomize_(YolosForObjectDetection(config)), named()


class TestMask2Former(Eager):
    inputs = ("model.pixel_level_module.encoder.swin.embeddings.patch_embeddings.projection:conv0_input",)
    heads = (
        "model.transformer_module.decoder.mask_predictor:einsum0_0",
        "model.transformer_module.decoder.mask_predictor:einsum0_1",
        "class_predictor:linear0_input",
    )
    analog = deformable("model.pixel_level_module.decoder.encoder.layers.0.self_attn")
    spiking, softmax, weights = 74, 6, 3

    @classmethod
    def build(cls):
        torch.manual_seed(0)
        swin = SwinConfig(
            image_size=64, patch_size=4, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1], window_size=2,
            out_features=["stage1", "stage2", "stage3", "stage4"],
        )  # fmt: skip
        config = Mask2FormerConfig(
            backbone_config=swin, hidden_dim=32, feature_size=32, mask_feature_size=32, num_queries=4,
            encoder_layers=1, decoder_layers=2, num_attention_heads=2, dim_feedforward=24,
            encoder_feedforward_dim=24, num_labels=3,
        )  # fmt: skip
        return randomize_(Mask2FormerForUniversalSegmentation(config)), named()


class TestVitDet(Eager):
    inputs = ("embeddings.projection:conv0_input",)
    spiking, softmax, weights = 20, 2, 4  # tables of relative positions

    @classmethod
    def build(cls):
        torch.manual_seed(0)
        config = VitDetConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=64, pretrain_image_size=64,
            patch_size=16, window_block_indices=[0], window_size=2, use_relative_position_embeddings=True,
        )  # fmt: skip
        return randomize_(VitDetBackbone(config)), named()


class TestScenes(Eager):
    inputs = ("backbone.stage1.0:conv0_input",)
    heads = ("boxes:conv0_input", "classes:conv0_input", ":matmul0_lhs", ":matmul0_rhs")
    spiking, softmax = 36, 3

    @classmethod
    def build(cls):
        torch.manual_seed(0)
        return randomize_(SceneDetector(32, detections=4)), images(64)


def test_levels_of_a_pyramid_share_their_neurons():
    model, batches = TestRetinaNet.build()
    snn = onespike.convert(model, onespike.calibrate(model, batches))
    rows = {row["site"]: row["neuron"] for row in table(snn)}
    assert "shared by 2 calls per forward" in rows["head.classification_head.conv.0.0:conv0_input"]
    assert "shared" not in rows["backbone.second.0:conv0_input"]


def test_a_detector_that_finds_nothing_goes_on():
    """The later stages receive tensors without rows; their neurons, the ledger and the output accept that."""
    model, batches = TestMaskRCNN.build()
    snn = onespike.convert(model, onespike.calibrate(model, batches))
    snn.roi_heads.score_thresh = 2.0
    with torch.no_grad(), onespike.metered(snn) as ledger:
        output = snn(*batches[0])
    assert [len(found["boxes"]) for found in output] == [0, 0]
    assert 0 < ledger.ratio("counts") < 2
    model.roi_heads.score_thresh = 2.0
    with pytest.raises(onespike.errors.CalibrationError, match=r"nothing ever reached roi_heads\.mask"):
        onespike.calibrate(model, batches)


def test_images_in_a_list_are_counted_one_by_one():
    model, batches = TestFasterRCNN.build()
    assert onespike.calibrate(model, batches).provenance["samples"] == 4


def test_what_is_the_same_for_every_input_stays_analog_for_batches_of_any_size():
    """Object queries attend to each other before they see the image; a batch only repeats them."""
    model, batches = TestDetr.build()
    thresholds = onespike.calibrate(model, batches)
    assert thresholds["model.decoder.layers.0.self_attn:matmul1_lhs"].role == "constant"
    assert thresholds["model.decoder.layers.0.encoder_attn:matmul1_lhs"].role == "softmax"
