"""What the documentation's commands are run on: a folder with every file that they name, each of them tiny."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from image_folders import annotated, noise, small_vit
from language_folders import bert, llama, sentence, text, tokenizer

STORIES = ("SmolLM2-135M", "stories15M", "smollm2", "qwen")
TEXTS = ("text.txt", "other.txt", "calibration.txt", "val.txt", "start.txt", "end.txt")
SENTENCES = ("sentences.txt", "others.txt")
CLASSIFIED = ("DIR", "imagenet/train", "imagenet/val", "imagenet/calibration")
RUNS = ("RUN", "run", "run-a", "run-b")


def small_detector(**settings: Any) -> torch.nn.Module:
    """In place of every detector of torchvision: its own Mask R-CNN on a backbone of one convolution."""
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.ops import MultiScaleRoIAlign

    torch.manual_seed(0)
    backbone = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 4, 1), torch.nn.ReLU())
    backbone.out_channels = 8
    return MaskRCNN(
        backbone, 91, min_size=32, max_size=48, box_score_thresh=0.0, box_detections_per_img=5,
        rpn_anchor_generator=AnchorGenerator(((16,),), ((1.0,),)), rpn_pre_nms_top_n_test=20,
        rpn_post_nms_top_n_test=10, box_roi_pool=MultiScaleRoIAlign(["0"], 3, 1),
        mask_roi_pool=MultiScaleRoIAlign(["0"], 3, 1),
    ).eval()  # fmt: skip


def made(folder: Path) -> Path:
    """Images in classes, annotated images, texts, networks that read them, and checkpoints."""
    from safetensors.torch import save_file
    from torchvision.models.detection import MaskRCNN_ResNet50_FPN_Weights

    for place, name in enumerate(CLASSIFIED):
        for number in range(20):
            noise(folder / name / str(number // 2) / f"{number}.png", 100 * place + number)
    every = enumerate(MaskRCNN_ResNet50_FPN_Weights.COCO_V1.meta["categories"])
    categories = {number: name for number, name in every if name not in ("__background__", "N/A")}
    for part in ("train2017", "val2017"):
        file = folder / "coco" / "annotations" / f"instances_{part}.json"
        annotated(folder / "coco" / part, file, 20, categories, (1, 17))
    for place, name in enumerate(TEXTS):
        text(folder / name, place, 9000)  # eight windows for calibration, and others
    for name in STORIES:
        llama(folder / name, words=tokenizer(), max_position_embeddings=512)
    bert(folder / "minilm")
    for place, name in enumerate(SENTENCES):
        (folder / name).write_text("".join(sentence(100 * place + n, 8) + "\n" for n in range(40)))
    for name in ("vit.safetensors", "vit_tiny.safetensors"):
        save_file(small_vit().state_dict(), folder / name)
    return folder
