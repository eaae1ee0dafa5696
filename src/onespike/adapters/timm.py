"""`timm:NAME` and `timm:NAME.TAG`."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from onespike.adapters.base import LoadedModel, Reading, Source
from onespike.adapters.checkpoints import built
from onespike.adapters.preprocessing import describe_normalization
from onespike.errors import LoadError, require, unknown
from onespike.tasks import Classification


def names() -> Sequence[str]:
    return tuple(require("timm", "timm", "the list of timm models").list_models())


def load(name: str, source: Source) -> LoadedModel:
    """Load a timm model with the transform of its evaluation settings."""
    spec = source.spec
    timm = require("timm", "timm", spec)
    if not timm.is_model(name):
        raise unknown("timm model", name, names(), f"All {len(names())} names: onespike list models timm.")
    architecture, _, tag = name.partition(".")
    tags = [n.partition(".")[2] for n in timm.list_pretrained(f"{architecture}.*")]
    if tag and tag not in tags:
        none = "" if tags else f"It has none. Write timm:{architecture}."
        raise unknown(f"tag of timm:{architecture}", tag, tags, none)
    if source.pretrained and not timm.is_model_pretrained(name):
        raise LoadError(f"{spec}: timm publishes no weights for it. Give a checkpoint with weights=FILE.")
    model = built(source, lambda: timm.create_model(name, pretrained=source.pretrained))
    settings = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**settings, is_training=False)
    reading, attention = Reading(transform, _describe(settings)), set_attention_(model, source.attention)
    task = Classification()
    # timm knows the names and WordNet ids of these classes
    if subset := timm.data.infer_imagenet_subset(model):
        info = timm.data.ImageNetInfo(subset)
        descriptions = tuple(info.index_to_description(i) for i in range(info.num_classes()))
        task = Classification(descriptions, tuple(info.label_names()))
    return LoadedModel(model, spec, reading, task, source.describe(), attention)


def set_attention_(model: nn.Module, attention: str | None) -> str | None:
    """Choose fused or written-out attention in a timm model, without a choice fused if any of it is; return the form."""
    modules = [m for m in model.modules() if isinstance(getattr(m, "fused_attn", None), bool)]
    if not modules:
        return None
    attention = attention or ("sdpa" if any(m.fused_attn for m in modules) else "eager")
    for module in modules:
        module.fused_attn = attention == "sdpa"  # type: ignore[assignment]
    return attention


def _describe(settings: dict[str, Any]) -> str:
    height, width = settings["input_size"][1:]
    size = f"{height}" if height == width else f"{height}×{width}"
    resize = f"resize {int(height / settings['crop_pct'])} {settings['interpolation']}"
    normalization = describe_normalization(settings["mean"], settings["std"])
    return f"{resize}, {settings['crop_mode']} crop {size}, {normalization}"
