"""From a detector's output to COCO results: boxes as (x, y, width, height), masks as run lengths."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onespike.errors import require
from onespike.tasks import Detection
from onespike.tasks.objects import Objects, boxes_around

Records = Sequence[Mapping[str, Any]]


def box(corners: Tensor) -> list[float]:
    """Turn corners (x0, y0, x1, y1) into COCO's (x, y, width, height)."""
    x0, y0, x1, y1 = (float(v) for v in corners)
    return [x0, y0, x1 - x0, y1 - y0]


def run_lengths(mask: Tensor) -> dict[str, Any]:
    """Return a mask (height, width) of zeros and ones as COCO stores it."""
    encode = require("pycocotools.mask", "detection", "mask").encode
    encoded = encode(mask.to(torch.uint8).cpu().t().contiguous().numpy().T)  # in Fortran's order
    return {"size": list(encoded["size"]), "counts": encoded["counts"].decode()}


def listed(output: Any, images: Records) -> Iterator[dict[str, Any]]:
    """Return the results of networks that give one dictionary per image: boxes, labels, scores, perhaps masks."""
    for image, entry in zip(images, output, strict=True):
        for i in range(len(entry["scores"])):
            result = {
                "image_id": image["id"], "category_id": int(entry["labels"][i]),
                "score": float(entry["scores"][i]), "bbox": box(entry["boxes"][i]),
            }  # fmt: skip
            if "masks" in entry:
                result["segmentation"] = run_lengths(entry["masks"][i, 0] > 0.5)
            yield result


def objects_in(output: Any) -> list[Objects]:
    """Return the same dictionaries as tensors with gradients; binary masks have none and are left out."""
    objects: list[Objects] = []
    for entry in output:
        tensors = {name: entry[name] for name in ("scores", "labels", "boxes")}
        if "masks" in entry and entry["masks"].is_floating_point():
            tensors["masks"] = entry["masks"].squeeze(1)
        objects.append(tensors)
    return objects


def as_list(inputs: list[Tensor]) -> tuple[list[Tensor]]:
    """Return a batch of images that keep their sizes: one argument, a list."""
    return (inputs,)


def padded(inputs: list[Tensor]) -> dict[str, Tensor]:
    """Return a batch as one tensor, padded right and below, and which of its pixels are real."""
    height, width = (max(x.shape[axis] for x in inputs) for axis in (-2, -1))
    edges = [(0, width - x.shape[-1], 0, height - x.shape[-2]) for x in inputs]

    def together(parts: list[Tensor]) -> Tensor:
        return torch.stack([F.pad(x, edge) for x, edge in zip(parts, edges, strict=True)])

    real = [torch.ones_like(x[0], dtype=torch.long) for x in inputs]
    return {"pixel_values": together(inputs), "pixel_mask": together(real)}


def processed(processor: Any, masks: bool, class_names: tuple[str, ...] | None) -> Detection:
    """Return objects by an image processor of transformers: boxes, or instance masks (with the boxes they imply)."""

    def sizes(images: Records) -> dict[str, Any]:
        return {"threshold": 0.0, "target_sizes": [(image["height"], image["width"]) for image in images]}

    def boxes(output: Any, images: Records) -> Iterator[dict[str, Any]]:
        return listed(processor.post_process_object_detection(output, **sizes(images)), images)

    def instances(output: Any, images: Records) -> Iterator[dict[str, Any]]:
        segment_all = processor.post_process_instance_segmentation
        segmented = segment_all(output, **sizes(images), return_binary_maps=True)
        for image, parts in zip(images, segmented, strict=True):
            for segment, mask in zip(parts["segments_info"], parts["segmentation"], strict=True):
                if mask.any():
                    yield {
                        "image_id": image["id"], "category_id": int(segment["label_id"]),
                        "score": float(segment["score"]), "bbox": box(boxes_around(mask[None] != 0)[0]),
                        "segmentation": run_lengths(mask > 0),
                    }  # fmt: skip

    def objects_with_boxes(output: Any) -> list[Objects]:
        return objects_in(processor.post_process_object_detection(output, threshold=0.0))

    def objects_with_masks(output: Any) -> list[Objects]:
        """Return queries with their most likely class; the last class is no object."""
        scores, labels = output.class_queries_logits.softmax(-1)[..., :-1].max(-1)
        queries = zip(scores, labels, output.masks_queries_logits.sigmoid(), strict=True)
        return [{"scores": s, "labels": c, "masks": m} for s, c, m in queries]

    results, objects = (instances, objects_with_masks) if masks else (boxes, objects_with_boxes)
    return Detection(results, objects, masks, class_names)
