"""Small converted networks that the tests of exports share."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onespike
from onespike.deploy.exports import FORMATS
from onespike.deploy.exports.base import Format
from onespike.recipe import Recipe


class Convolutions(nn.Module):
    """Strides, groups, BatchNorm, pooling and a linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.third = nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.Conv2d(12, 12, 3, groups=4)
        self.middle, self.last = nn.Linear(12, 10), nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.norm(self.first(x)).relu(), 2)
        x = self.third(self.second(x).relu()).relu()
        return self.last(self.middle(x.mean((2, 3))).relu())


class Cnn(nn.Sequential):
    """Convolutions and linear maps in a chain."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3),
        )  # fmt: skip


class Attention(nn.Module):
    """Norms, attention, GELU, residual sums, and a mapping as output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 16)
        self.block = nn.TransformerEncoderLayer(
            16, 2, 24, batch_first=True, activation="gelu", norm_first=True
        )
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.block(self.embed(x))
        return {"logits": self.last(hidden.mean(1)), "hidden": hidden}


class Deep(nn.Sequential):
    """A chain of linear maps and ReLUs."""

    def __init__(self) -> None:
        hidden = [layer for sizes in pairwise((6, 16, 12, 8)) for layer in (nn.Linear(*sizes), nn.ReLU())]
        super().__init__(*hidden, nn.Linear(8, 3))


class InPlace(nn.Module):
    """Operations that change their input, as residual networks have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.third, self.last = nn.Conv2d(6, 6, 1), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.first(x).relu_()
        x = self.second(shortcut)
        x += shortcut
        return self.last(self.third(x.relu_()).mean((2, 3)))


class Pools(nn.Sequential):
    """Average pools, ReLU6, Hardswish, BatchNorm of one dimension and windows of different sizes."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 3, padding="same"), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 8, 1), nn.ReLU6(),
            nn.MaxPool2d(2, ceil_mode=True), nn.Conv2d(8, 8, 1, groups=2), nn.Hardswish(), nn.AdaptiveAvgPool2d(2),
            nn.Flatten(), nn.Linear(32, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 5),
        )  # fmt: skip


class Back(nn.Sequential):
    """Transposed convolutions."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU(),
            nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2), nn.ReLU(),
            nn.Conv2d(4, 4, 3), nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.Flatten(), nn.Linear(36, 5),
        )  # fmt: skip


TINY = dict(
    vocab_size=20, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, initializer_range=0.5,
    max_position_embeddings=16,
)  # fmt: skip


def llama() -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.LlamaConfig(**TINY, num_key_value_heads=1, use_cache=False)
    return transformers.LlamaForCausalLM(config)


def bert() -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    return transformers.BertModel(transformers.BertConfig(**TINY))


SHAPES = {
    Pools: (3, 14, 14),
    Back: (3, 8, 8),
    Cnn: (2, 6, 6),
    InPlace: (3, 6, 6),
    Convolutions: (3, 12, 12),
    Attention: (5, 6),
    Deep: (6,),
}
AFFINE = Recipe(passes=("nearest", "positions", "center"), levels="mixed:6")
TOKENS = Recipe(passes=("nearest", "tokens"))


@cache
def small(kind: type[nn.Module], recipe: Recipe | None = None) -> tuple[nn.Module, list[Tensor]]:
    """A converted network and two batches that it was calibrated on. Only to be read."""
    torch.manual_seed(0)
    model = kind().eval()
    batches = [torch.randn(4, *SHAPES[kind]) for _ in range(2)]
    if kind is Convolutions:
        model.norm.running_mean.normal_()  # type: ignore[union-attr, operator]
        model.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr, operator]
    return onespike.spike(model, batches, recipe or Recipe()), batches


def installed(name: str) -> Format:
    """Return a format, or skip the test where its runtime is not installed."""
    chosen = FORMATS[name]
    for package in chosen.needs:
        pytest.importorskip(package, reason=f"{package} is missing: pip install 'onespike[{chosen.extra}]'")
    return chosen
