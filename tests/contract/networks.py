"""Small networks that tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onespike import Recipe, calibrate, convert
from onespike.energy.metering import counted as counted


class Transformer(nn.Module):
    """A stem, one attention and one MLP with their norms, and a head; the attention's products are written out."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.stem = nn.Linear(6, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.act = nn.GELU()
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.stem(x)).mean(1))

    def block(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1), -1)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(b, n, c))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


def transformer(seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    return Transformer().eval()


def sequences(count: int = 12, seed: int = 1) -> Tensor:
    return torch.randn(count, 7, 6, generator=torch.Generator().manual_seed(seed))


def mlp(*between: nn.Module) -> nn.Sequential:
    """4 → 8 → 8 → 3 with ReLU; extra modules come before the head."""
    torch.manual_seed(0)
    layers = (nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), *between, nn.Linear(8, 3))
    return nn.Sequential(*layers).eval()


def rows(count: int = 64, seed: int = 1) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def converted(model: nn.Module, x: Any, recipe: Recipe | None = None) -> nn.Module:
    """The network calibrated on one batch, and converted."""
    return convert(model, calibrate(model, [x], recipe), recipe)


class Attention(nn.Module):
    """Fused attention of four heads between linear maps; grouped heads share keys and values."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.options, groups = options, 2 if options.get("enable_gqa") else 1
        self.stem, self.head = nn.Linear(6, 16), nn.Linear(16, 3)
        self.q, self.k, self.v = nn.Linear(16, 16), *(nn.Linear(16, 16 // groups) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        q, k, v = (part(x).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.head(F.scaled_dot_product_attention(q, k, v, **self.options).transpose(1, 2).flatten(2))


MASKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "mask of bits": {"attn_mask": torch.rand(9, 9, generator=torch.Generator().manual_seed(0)) > 0.4},
    "mask that is added": {"attn_mask": torch.arange(81.0).view(9, 9).sin()},
}
"""Options of attention for sequences of nine."""


def nine(count: int = 3) -> Tensor:
    """Sequences of nine for `Attention`."""
    return torch.randn(count, 9, 6, generator=torch.Generator().manual_seed(1))


@contextmanager
def refused(error: type[Exception], text: str) -> Iterator[None]:
    """The block is refused in these words."""
    with pytest.raises(error) as caught:
        yield
    assert str(caught.value) == text


@contextmanager
def threads(number: int) -> Iterator[None]:
    """The block runs with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Layers(nn.Module):
    """Named layers and what a forward does with them: `Layers(lambda self, x: self.head(self.stem(x)), stem=…, head=…)`."""

    def __init__(self, run: Callable[..., Tensor], **layers: Any) -> None:
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Any, *others: Any) -> Any:
        return self.run(self, x, *others)
