"""The networks that `speed.py` times, and their converted forms."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import nn

import onespike
from onespike.calibration.thresholds import SiteThreshold, is_bias
from onespike.passes.base import PassContext, PassState, axes
from onespike.passes.layout import DIGITS, LARGEST, bytes_, digit_levels

NETWORKS = {
    "vit-tiny": ("timm", "vit_tiny_patch16_224"),
    "vit-base": ("timm", "vit_base_patch16_224"),
    "resnet18": ("torchvision", "resnet18"),
    "mobilenet_v2": ("torchvision", "mobilenet_v2"),
}
MINILM = dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
"""The sizes of all-MiniLM-L6."""


def build(name: str, size: int = 224) -> nn.Module:
    library, model = NETWORKS[name]
    torch.manual_seed(0)
    if library == "timm":
        import timm

        extra = {"img_size": size} if size != 224 else {}
        return timm.create_model(model, **extra).eval()
    import torchvision

    return torchvision.models.get_model(model, weights=None).eval()


class MiniLM(nn.Module):
    """A small BERT from tokens to the last hidden states."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        torch.manual_seed(0)
        self.bert = transformers.BertModel(transformers.BertConfig(**MINILM), add_pooling_layer=False).eval()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.bert(tokens).last_hidden_state
        return hidden


def converted(model: nn.Module, x: torch.Tensor, recipe: onespike.Recipe) -> nn.Module:
    return onespike.convert(model, onespike.calibrate(model, [x[:2]], recipe), recipe, share_weights=True)


def as_best(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """A network whose neurons have what those of `fast` and `best` have: levels, steps, centers and gains, of any value."""
    return shaped(model, x, onespike.Recipe(rounding="nearest"), digit_levels(max(DIGITS), LARGEST))


def as_bytes(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """The same without gains, with the levels of the pass `bytes` and centers that are biases."""
    return shaped(model, x, onespike.Recipe(rounding="nearest"))


def shaped(
    model: nn.Module, x: torch.Tensor, recipe: onespike.Recipe, levels: tuple[int, ...] = ()
) -> nn.Module:
    """Return a converted network with one step per channel or head, and centers; with levels also gains by position."""
    found = onespike.calibrate(model, [x[:2]], recipe)
    if not levels:
        found = bytes_(PassState(found, recipe), PassContext(model, [x[:2]])).thresholds

    def part(t: SiteThreshold, axes: tuple[int, ...], value: float) -> torch.Tensor:
        shape = [t.shape[a] if a in axes else 1 for a in range(1 - len(t.shape), 0)]
        return value * torch.linspace(0.9, 1.1, prod(shape)).view(shape)

    entries = dict(found.entries)
    for site, t in found.items():
        along = axes(t, found.get(site.operand("lhs") if site.role == "rhs" else site, t))
        if t.role not in ("activation", "softmax") or not along.step:
            continue
        step = part(t, along.step, float(t.positive.max()))
        changes: dict[str, Any] = {"positive": step, "negative": step * float(t.negative.max() > 0)}
        if levels:
            changes["levels"] = levels
        biased = is_bias(site, model) and float(t.negative.max()) > 0
        if along.center and (biased or levels):
            changes |= {"center": part(t, along.center, 0.01), "negative": step}
        if along.position is not None and levels:
            gain = torch.ones(t.shape[along.position])
            gain[0] = 0.5
            changes["gain"] = gain.view(-1, *[1] * (-along.position - 1))
        entries[site] = replace(t, **changes)
    return onespike.convert(model, replace(found, entries=entries), recipe, share_weights=True)
