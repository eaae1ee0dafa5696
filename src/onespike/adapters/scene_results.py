"""Inputs and results of the bundled detector of scenes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onespike.adapters.detection import Records, box, run_lengths
from onespike.adapters.scenes import SIDE
from onespike.tasks.objects import Found


def scene_objects(output: dict[str, Tensor]) -> list[Found]:
    """Return each image's objects as tensors; masks are cut to their boxes, as in `scene_results`."""
    logits, boxes = output["masks"], output["boxes"].detach()
    side = SIDE / logits.shape[-1]
    at = (torch.arange(logits.shape[-1], device=logits.device) + 0.5) * side
    x0, y0, x1, y1 = (boxes[..., c, None] for c in range(4))
    inside = ((at > y0) & (at < y1))[..., :, None] & ((at > x0) & (at < x1))[..., None, :]
    masks = logits.sigmoid() * inside
    names = ("scores", "labels", "boxes")
    return [{**{name: output[name][row] for name in names}, "masks": masks[row]} for row in range(len(masks))]


def scene_results(output: dict[str, Tensor], images: Records) -> Iterator[dict[str, Any]]:
    """Return COCO results of the detector's output: masks at the image's size, cut to their boxes."""
    for row, image in enumerate(images):
        height, width = image["height"], image["width"]
        masks = F.interpolate(output["masks"][row][None], size=(height, width), mode="bilinear")[0] > 0
        boxes = output["boxes"][row] * torch.tensor([width, height, width, height]) / SIDE
        ys, xs = torch.arange(height)[:, None] + 0.5, torch.arange(width) + 0.5
        for i, (x0, y0, x1, y1) in enumerate(boxes.tolist()):
            inside = (xs > x0) & (xs < x1) & (ys > y0) & (ys < y1)
            yield {
                "image_id": image["id"], "category_id": int(output["labels"][row, i]),
                "score": float(output["scores"][row, i]), "bbox": box(boxes[i]),
                "segmentation": run_lengths(masks[i].cpu() & inside),
            }  # fmt: skip


def to_input(image: Any) -> Tensor:
    """Turn an RGB image of 64×64 pixels into values from −1 to 1."""
    from PIL.Image import Resampling

    if image.size != (SIDE, SIDE):
        image = image.resize((SIDE, SIDE), Resampling.BILINEAR)
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(SIDE, SIDE, 3)
    return pixels.permute(2, 0, 1).float() / 127.5 - 1
