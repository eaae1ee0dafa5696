"""`torchvision:NAME`, its classification models."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from onespike.adapters.base import (
    LoadedModel,
    Source,
    adapter,
    cannot_download,
    describe_normalisation,
    require,
    unknown_model,
)
from onespike.adapters.checkpoints import load_checkpoint_
from onespike.errors import UsageError


def names() -> Sequence[str]:
    models = require("torchvision", "torchvision", "the list of torchvision models").models
    return tuple(models.list_models(module=models))


@adapter("torchvision", names=names)
def load(name: str, source: Source) -> LoadedModel:
    """A torchvision classifier with the transform of its default weights."""
    spec = f"torchvision:{name}"
    models = require("torchvision", "torchvision", spec).models
    known = names()
    if name not in known:
        listing = "onespike list models torchvision"
        raise unknown_model("torchvision", name, known, listing)
    published = models.get_model_weights(name).DEFAULT
    try:
        model: nn.Module = models.get_model(name, weights=published if source.pretrained else None)
    except Exception as error:
        if not source.pretrained:
            raise
        raise cannot_download(spec, error) from error
    if source.file:
        load_checkpoint_(model, source.file)
    fused = any(isinstance(m, nn.MultiheadAttention) for m in model.modules())
    if fused and source.attention == "eager":
        raise UsageError(
            f"{spec}: torchvision computes attention with sdpa only. Leave attention out, or give 'sdpa'."
        )
    transform = published.transforms()
    metrics = published.meta["_metrics"].get("ImageNet-1K", {})
    return LoadedModel(
        model=model,
        spec=spec,
        transform=transform,
        preprocessing=(
            f"resize {transform.resize_size[0]} {transform.interpolation.value}, center crop {transform.crop_size[0]}, "
            + describe_normalisation(transform.mean, transform.std)
        ),
        weights=source.describe(),
        attention="sdpa" if fused else None,
        class_names=tuple(published.meta["categories"]),
        published_top1=metrics.get("acc@1") if source.pretrained else None,
    )
