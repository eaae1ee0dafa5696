"""`torchvision:NAME`: its classification models and its detectors."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from onespike.adapters.base import LoadedModel, Reading, Source, classifier
from onespike.adapters.checkpoints import built
from onespike.adapters.detection import as_list, listed, objects_in
from onespike.adapters.preprocessing import describe_normalization
from onespike.errors import UsageError, require, unknown
from onespike.tasks import Detection, Task


def names() -> Sequence[str]:
    models = require("torchvision", "torchvision", "the list of torchvision models").models
    return tuple(models.list_models(module=models) + models.list_models(module=models.detection))


def load(name: str, source: Source) -> LoadedModel:
    """Load a torchvision classifier or detector with the transform of its default weights."""
    spec = source.spec
    models = require("torchvision", "torchvision", spec).models
    if name not in names():
        listing = f"All {len(names())} names: onespike list models torchvision."
        raise unknown("torchvision model", name, names(), listing)
    detects = name in models.list_models(module=models.detection)
    published = models.get_model_weights(name).DEFAULT
    weights = {"weights": published if source.pretrained else None}
    if detects:
        weights["weights_backbone"] = None  # which would be fetched as well
    model = built(source, lambda: models.get_model(name, **weights))
    fused = any(isinstance(m, nn.MultiheadAttention) for m in model.modules())
    if fused and source.attention == "eager":
        raise UsageError(f"{spec}: torchvision computes attention with sdpa only. Use attention='sdpa'.")
    doubt = _doubt(models.get_model_weights(name)) if source.file and not detects else ""
    reading, task = _detector(model, published) if detects else _classifier(published, doubt)
    metrics = published.meta["_metrics"].get("ImageNet-1K", {}) if source.pretrained else {}
    attention = "sdpa" if fused else None
    return LoadedModel(model, spec, reading, task, source.describe(), attention, metrics.get("acc@1"))


def _doubt(every: Any) -> str:
    """Return how the preprocessing of published weights differs; nothing if it does not."""
    sizes = {w.name: (w.transforms().resize_size[0], w.transforms().crop_size[0]) for w in every}
    if len(set(sizes.values())) < 2:
        return ""
    return ", ".join(f"{name} resize={resize} crop={crop}" for name, (resize, crop) in sizes.items())


def _classifier(published: Any, doubt: str) -> tuple[Reading, Task]:
    transform = published.transforms()
    resize = f"resize {transform.resize_size[0]} {transform.interpolation.value}"
    normalization = describe_normalization(transform.mean, transform.std)
    preprocessing = f"{resize}, center crop {transform.crop_size[0]}, {normalization}"
    return Reading(transform, preprocessing, doubt=doubt), classifier(tuple(published.meta["categories"]))


def _detector(model: Any, published: Any) -> tuple[Reading, Task]:
    """A detector resizes and normalizes by itself, so that its boxes refer to the original image."""
    inner, masks = model.transform, hasattr(getattr(model, "roi_heads", None), "mask_head")
    normalization = describe_normalization(inner.image_mean, inner.image_std)
    preprocessing = f"resize {min(inner.min_size)} to {inner.max_size} bilinear, {normalization}"
    task = Detection(listed, objects_in, masks, tuple(published.meta["categories"]))
    return Reading(published.transforms(), preprocessing, as_list), task
