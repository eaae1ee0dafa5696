"""Images of noise, annotated ones among them, and a vision transformer that is small enough for them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from PIL import Image


def noise(path: Path, seed: int, side: int = 32) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.frombytes("RGB", (side, side), random.Random(seed).randbytes(side * side * 3)).save(path)
    return path


def annotated(folder: Path, file: Path, count: int, names: dict[int, str], kinds: tuple[int, int]) -> None:
    """Write images with an object of each of two kinds, and COCO's instances JSON; ids of images have gaps."""
    images: list[dict[str, Any]] = []
    objects: list[dict[str, Any]] = []
    for number in range(count):
        noise(folder / f"{number}.png", number, side=48)
        images.append({"id": 7 * number, "file_name": f"{number}.png", "width": 48, "height": 48})
        for kind in kinds:
            x, y = float(number), kind / 2
            objects.append({
                "id": len(objects) + 1, "image_id": 7 * number, "category_id": kind, "bbox": [x, y, 20.0, 20.0],
                "area": 400.0, "iscrowd": 0, "segmentation": [[x, y, x + 20, y, x + 20, y + 20, x, y + 20]],
            })  # fmt: skip
    categories = [{"id": number, "name": name} for number, name in names.items()]
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"images": images, "annotations": objects, "categories": categories}))


def vit_folder(path: Path, **changes: Any) -> Path:
    """A tiny ViT of transformers with its image processor, as `save_pretrained` writes both."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32,
        patch_size=16, **changes,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(path)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(path)
    return path


def small_vit() -> torch.nn.Module:
    """timm's own class, in a size that converts in a second."""
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(
        img_size=32, patch_size=16, num_classes=10, embed_dim=16, depth=2, num_heads=2, mlp_ratio=2.0
    )
    model.pretrained_cfg = model.default_cfg = {"input_size": (3, 32, 32), "num_classes": 10}
    return larger(model)


def larger(model: torch.nn.Module) -> torch.nn.Module:
    """Give a network with random weights outputs that differ."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() > 1 else 1)
    return model.eval()
