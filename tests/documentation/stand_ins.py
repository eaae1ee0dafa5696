"""What the documentation's commands are run on: a folder with every file that they name, each of them tiny."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from language_folders import bert, llama, sentence, text, tokenizer

STORIES = ("SmolLM2-135M", "stories15M", "smollm2", "qwen")
TEXTS = ("text.txt", "other.txt", "calibration.txt", "val.txt", "start.txt", "end.txt")
SENTENCES = ("sentences.txt", "others.txt")
CLASSIFIED = ("DIR", "imagenet/train", "imagenet/val", "imagenet/calibration")
RUNS = ("RUN", "run", "run-a", "run-b")
QUESTION = """task: mine
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: ["cat", "dog"]
doc_to_target: label
"""


def small_vit(**settings: Any) -> torch.nn.Module:
    """In place of every network of timm: its own class, in a size that converts in a second."""
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(
        img_size=32, patch_size=16, num_classes=10, embed_dim=16, depth=2, num_heads=2, mlp_ratio=2.0
    )
    model.pretrained_cfg = model.default_cfg = {"input_size": (3, 32, 32), "num_classes": 10}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() > 1 else 1)
    return model.eval()


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
    for place, name in enumerate(CLASSIFIED):
        for number in range(20):
            _noise(folder / name / str(number // 2) / f"{number}.png", 100 * place + number)
    for part in ("train2017", "val2017"):
        _annotated(folder / "coco", part)
    for place, name in enumerate(TEXTS):
        text(folder / name, place, 9000)  # eight windows for calibration, and others
    for name in STORIES:
        llama(folder / name, words=tokenizer(), max_position_embeddings=512)
    bert(folder / "minilm")
    for place, name in enumerate(SENTENCES):
        (folder / name).write_text("".join(sentence(100 * place + n, 8) + "\n" for n in range(40)))
    for name in ("vit.safetensors", "vit_tiny.safetensors"):
        _weights(folder / name)
    (folder / "tasks").mkdir()
    (folder / "tasks/mine.yaml").write_text(QUESTION)
    questions = [{"question": "the cat sat on the", "label": n % 2} for n in range(4)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
    return folder


def _weights(path: Path) -> None:
    from safetensors.torch import save_file

    save_file(small_vit().state_dict(), path)


def _noise(path: Path, seed: int, side: int = 32) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.frombytes("RGB", (side, side), random.Random(seed).randbytes(side * side * 3)).save(path)


def _annotated(root: Path, part: str) -> None:
    from torchvision.models.detection import MaskRCNN_ResNet50_FPN_Weights

    images: list[dict[str, Any]] = []
    objects: list[dict[str, Any]] = []
    for number in range(1, 21):
        _noise(root / part / f"{number}.png", number, side=48)
        images.append({"id": number, "file_name": f"{number}.png", "width": 48, "height": 48})
        for category in (1, 17):
            x = float(number + category)
            objects.append({
                "id": len(objects) + 1, "image_id": number, "category_id": category, "bbox": [x, 4.0, 20.0, 20.0],
                "area": 400.0, "iscrowd": 0, "segmentation": [[x, 4.0, x + 20, 4.0, x + 20, 24.0, x, 24.0]],
            })  # fmt: skip
    known = enumerate(MaskRCNN_ResNet50_FPN_Weights.COCO_V1.meta["categories"])
    names = [{"id": number, "name": name} for number, name in known if name not in ("__background__", "N/A")]
    (root / "annotations").mkdir(exist_ok=True)
    record = {"images": images, "annotations": objects, "categories": names}
    (root / "annotations" / f"instances_{part}.json").write_text(json.dumps(record))
