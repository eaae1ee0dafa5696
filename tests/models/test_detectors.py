"""Detectors of every family, small and with random weights: variable sizes, pyramids, NMS and sampling keep working.

Their control flow follows their data, so that none is one graph.
"""

from __future__ import annotations

import pytest
import timm
import torch
import transformers as hf
from families import Uncompiled, contract
from torch import Tensor, nn
from torchvision.models.detection import FCOS, FasterRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork

import onespike
from contract.conversion_contract import images
from onespike.adapters.bundled import SceneDetector
from onespike.conversion.network import table

# transformers still decorates some functions with torch's old compiler when its modules are imported
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")


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


ROI_HEAD, ROI_POOL = (
    "roi_heads.box_predictor.cls_score:linear0_input",
    "roi_heads.box_roi_pool:torchvision.roi_align",
)
FIRST = ("backbone.first.0:conv0_input",)
SCORES, SIDES = "head.classification_head.cls_logits:conv0_input", "head.regression_head.bbox_reg:conv0_input"


def mask_rcnn() -> nn.Module:
    masks = dict(mask_head=MaskRCNNHeads(8, (8,), 1), mask_predictor=MaskRCNNPredictor(8, 8, 4))
    return two_stage(MaskRCNN, Pyramid(), **masks)


def one_stage(kind: type[nn.Module], width: int, generator: AnchorGenerator) -> nn.Module:
    return kind(Pyramid(width), anchor_generator=generator, score_thresh=0.0, detections_per_img=4, **SIZES)


TestMaskRCNN = contract(
    mask_rcnn, pictures, Uncompiled,
    inputs=FIRST, heads=(ROI_HEAD, "roi_heads.mask_predictor.mask_fcn_logits:conv0_input"),
    analog=(ROI_POOL, "roi_heads.mask_roi_pool:torchvision.roi_align"), spiking=13, softmax=0,
)  # fmt: skip
TestEvaInFasterRCNN = contract(
    lambda: two_stage(FasterRCNN, EvaPyramid()), pictures, Uncompiled,
    inputs=("backbone.body.patch_embed.proj:conv0_input",), heads=(ROI_HEAD,), analog=(ROI_POOL,), spiking=22, softmax=2,
)  # fmt: skip
TestRetinaNet = contract(
    lambda: one_stage(RetinaNet, 8, anchors()), pictures, Uncompiled,
    inputs=FIRST, heads=(SCORES, SIDES), spiking=13, softmax=0,
)  # fmt: skip
TestFCOS = contract(
    lambda: one_stage(FCOS, 32, AnchorGenerator(((8,), (16,)), ((1.0,),) * 2)), pictures, Uncompiled,
    inputs=FIRST, heads=(SCORES, SIDES, "head.regression_head.bbox_ctrness:conv0_input"), spiking=13, softmax=0,
)  # fmt: skip


def named(size: int = 64) -> list[dict[str, Tensor]]:
    return [{"pixel_values": x} for x in images(size)]


DECODER = dict(
    d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
    encoder_ffn_dim=24, decoder_ffn_dim=24, num_queries=4, num_labels=3,
)  # fmt: skip
WIDTHS = dict(embedding_size=8, hidden_sizes=[8, 8, 12, 16], depths=[1, 1, 1, 1], layer_type="basic")
BACKBONE = dict(use_timm_backbone=False, use_pretrained_backbone=False)
STAGES = ["stage2", "stage3", "stage4"]
EMBEDDER = "model.backbone.model.embedder.embedder"


def deformable(*owners: str) -> tuple[str, ...]:
    """What deformable attention does besides its projections."""
    return tuple(f"{owner}:{name}" for owner in owners for name in ("grid_sampler_2d", "weighted_sum"))


def detr() -> nn.Module:
    backbone = hf.ResNetConfig(**WIDTHS, out_features=["stage4"])
    return hf.DetrForObjectDetection(hf.DetrConfig(backbone_config=backbone, **BACKBONE, **DECODER))


def rt_detr() -> nn.Module:
    config = hf.RTDetrConfig(
        backbone_config=hf.RTDetrResNetConfig(**WIDTHS, out_features=STAGES), encoder_hidden_dim=16,
        encoder_in_channels=[8, 12, 16], encoder_ffn_dim=24, encoder_attention_heads=2, d_model=16,
        decoder_in_channels=[16, 16, 16], decoder_ffn_dim=24, decoder_layers=1, decoder_attention_heads=2,
        num_queries=4, num_labels=3, num_denoising=0, use_timm_backbone=False,
    )  # fmt: skip
    return hf.RTDetrForObjectDetection(config)


def deformable_detr() -> nn.Module:
    config = hf.DeformableDetrConfig(
        backbone_config=hf.ResNetConfig(**WIDTHS, out_features=STAGES), **BACKBONE,
        **{**DECODER, "d_model": 32, "decoder_layers": 2}, num_feature_levels=3, encoder_n_points=2, decoder_n_points=2,
    )  # fmt: skip
    # its queries are an expanded parameter, on which torch's counter cannot hang a hook without gradients
    return hf.DeformableDetrForObjectDetection(config).requires_grad_(False)


def yolos() -> nn.Module:
    config = hf.YolosConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=[64, 64],
        patch_size=16, num_detection_tokens=4, num_labels=3,
    )  # fmt: skip
    return hf.YolosForObjectDetection(config)


def mask2former() -> nn.Module:
    swin = hf.SwinConfig(
        image_size=64, patch_size=4, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1], window_size=2,
        out_features=["stage1", *STAGES],
    )  # fmt: skip
    config = hf.Mask2FormerConfig(
        backbone_config=swin, hidden_dim=32, feature_size=32, mask_feature_size=32, num_queries=4, encoder_layers=1,
        decoder_layers=2, num_attention_heads=2, dim_feedforward=24, encoder_feedforward_dim=24, num_labels=3,
    )  # fmt: skip
    return hf.Mask2FormerForUniversalSegmentation(config)


def vit_det() -> nn.Module:
    config = hf.VitDetConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=64, pretrain_image_size=64,
        patch_size=16, window_block_indices=[0], window_size=2, use_relative_position_embeddings=True,
    )  # fmt: skip
    return hf.VitDetBackbone(config)


TestDetr = contract(
    detr, named, Uncompiled, inputs=(f"{EMBEDDER}.convolution:conv0_input",), spiking=32, softmax=2, weights=1,
    heads=("class_labels_classifier:linear0_input", "bbox_predictor.layers.2:linear0_input"),
)  # fmt: skip
# Its decoder samples with `grid_sample` and weighs the samples: both stay analog, between spiking products.
TestRTDetr = contract(
    rt_detr, named, Uncompiled, inputs=(f"{EMBEDDER}.0.convolution:conv0_input",), spiking=89, softmax=2,
    heads=("model.enc_score_head:linear0_input", "model.decoder.class_embed.0:linear0_input"),
    analog=deformable("model.decoder.layers.0.encoder_attn.attn"),
)  # fmt: skip
# Every level of its pyramid is sampled, by the encoder and by the decoder.
TestDeformableDetr = contract(
    deformable_detr, named, Uncompiled, inputs=(f"{EMBEDDER}.convolution:conv0_input",), spiking=42, softmax=1,
    heads=tuple(f"{n}:linear0_input" for i in (0, 1) for n in (f"class_embed.{i}", f"bbox_embed.{i}.layers.2")),
    analog=deformable(
        "model.encoder.layers.0.self_attn.attn", *(f"model.decoder.layers.{i}.encoder_attn.attn" for i in (0, 1))
    ),
)  # fmt: skip
TestYolos = contract(
    yolos, named, Uncompiled, inputs=("vit.embeddings.patch_embeddings.projection:conv0_input",), spiking=14, softmax=1,
    heads=("class_labels_classifier.layers.2:linear0_input", "bbox_predictor.layers.2:linear0_input"),
)  # fmt: skip
MASKS = "model.transformer_module.decoder.mask_predictor"
TestMask2Former = contract(
    mask2former, named, Uncompiled, spiking=74, softmax=6, weights=3,
    inputs=("model.pixel_level_module.encoder.swin.embeddings.patch_embeddings.projection:conv0_input",),
    heads=(f"{MASKS}:einsum0_0", f"{MASKS}:einsum0_1", "class_predictor:linear0_input"),
    analog=deformable("model.pixel_level_module.decoder.encoder.layers.0.self_attn"),
)  # fmt: skip
VIT_DET = dict(inputs=("embeddings.projection:conv0_input",), spiking=20, softmax=2)
TestVitDet = contract(vit_det, named, Uncompiled, **VIT_DET, weights=4)  # tables of relative positions
TestScenes = contract(
    lambda: SceneDetector(32, detections=4), lambda: images(64), Uncompiled, inputs=("backbone.stage1.0:conv0_input",),
    heads=("boxes:conv0_input", "classes:conv0_input", ":matmul0_lhs", ":matmul0_rhs"), spiking=36, softmax=3,
)  # fmt: skip


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


def test_what_is_the_same_for_every_input_stays_analog_for_batches_of_any_size():
    """Object queries attend to each other before they see the image; a batch only repeats them."""
    model, batches = TestDetr.build()
    thresholds = onespike.calibrate(model, batches)
    assert thresholds["model.decoder.layers.0.self_attn:matmul1_lhs"].role == "constant"
    assert thresholds["model.decoder.layers.0.encoder_attn:matmul1_lhs"].role == "softmax"
