"""`torchvision:NAME`: its classification models and its detectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from onespike.adapters.base import (
    LoadedModel,
    Source,
    adapter,
    cannot_download,
    describe_normalization,
    imagenet_synsets,
    require,
    unknown_model,
)
from onespike.adapters.checkpoints import load_checkpoint_
from onespike.adapters.detection import as_list, backbone_of, found_in_list, listed
from onespike.errors import UsageError
from onespike.tasks import Detection


def names() -> Sequence[str]:
    models = require("torchvision", "torchvision", "the list of torchvision models").models
    return tuple(models.list_models(module=models) + models.list_models(module=models.detection))


@adapter("torchvision", names=names)
def load(name: str, source: Source) -> LoadedModel:
    """Load a torchvision classifier or detector with the transform of its default weights."""
    spec = f"torchvision:{name}"
    models = require("torchvision", "torchvision", spec).models
    known = names()
    if name not in known:
        listing = "onespike list models torchvision"
        raise unknown_model("torchvision", name, known, listing)
    detects = name in models.list_models(module=models.detection)
    published = models.get_model_weights(name).DEFAULT
    others = {"weights_backbone": None} if detects else {}  # which would be fetched as well
    try:
        model: nn.Module = models.get_model(name, weights=published if source.pretrained else None, **others)
    except Exception as error:
        if not source.pretrained:
            raise
        raise cannot_download(spec, error) from error
    if source.file:
        load_checkpoint_(model, source.file)
    fused = any(isinstance(m, nn.MultiheadAttention) for m in model.modules())
    if fused and source.attention == "eager":
        raise UsageError(f"{spec}: torchvision computes attention with sdpa only. Use attention='sdpa'.")
    transform = published.transforms()
    if detects:
        return _detector(model, spec, source, transform, published.meta["categories"])
    metrics = published.meta["_metrics"].get("ImageNet-1K", {})
    return LoadedModel(
        model=model,
        spec=spec,
        transform=transform,
        preprocessing=(
            f"resize {transform.resize_size[0]} {transform.interpolation.value}, center crop {transform.crop_size[0]}, "
            + describe_normalization(transform.mean, transform.std)
        ),
        weights=source.describe(),
        attention="sdpa" if fused else None,
        class_names=tuple(published.meta["categories"]),
        class_ids=imagenet_synsets(published.meta["categories"]),
        published_top1=metrics.get("acc@1") if source.pretrained else None,
        doubt=_doubt(models.get_model_weights(name)) if source.file else "",
    )


def _doubt(every: Any) -> str:
    """Return how the preprocessing of published weights differs; nothing if it does not."""
    sizes = {w.name: (w.transforms().resize_size[0], w.transforms().crop_size[0]) for w in every}
    if len(set(sizes.values())) < 2:
        return ""
    return ", ".join(f"{name} --resize {resize} --crop {crop}" for name, (resize, crop) in sizes.items())


def _detector(
    model: Any, spec: str, source: Source, transform: Any, categories: Sequence[str]
) -> LoadedModel:
    """Return a detector; it resizes and normalizes, so that its boxes refer to the original image."""
    inner = model.transform
    return LoadedModel(
        model=model,
        spec=spec,
        transform=transform,
        preprocessing=(
            f"resize {min(inner.min_size)} to {inner.max_size} bilinear, "
            + describe_normalization(inner.image_mean, inner.image_std)
        ),
        weights=source.describe(),
        attention=None,
        class_names=tuple(categories),
        task=Detection(listed, found_in_list, hasattr(getattr(model, "roi_heads", None), "mask_head")),
        collate=as_list,
        backbone=backbone_of(model),
    )
