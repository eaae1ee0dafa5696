"""A small attention network with a class token, and what the tests of passes share."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

from onespike import calibrate, preset
from onespike.passes import PassContext, PassState, chain
from onespike.runtime.forward import evaluating

ALL = ("nearest", "layout", "positions", "center", "allocate")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).movedim(2, 0).transpose(2, 3)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Attention(nn.Module):
    """Tokens of 6 numbers, two blocks, and a head that reads the class token alone."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed, self.token = nn.Linear(6, width), nn.Parameter(torch.randn(1, 1, width))
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], 1)
        return self.head(self.blocks(x)[:, 0])


def attention() -> nn.Module:
    torch.manual_seed(0)
    model = Attention().eval()
    for parameter in model.parameters():
        parameter.data *= 1.5
    return model


def convolutional() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(64, 3),
    ).eval()  # fmt: skip


def tokens(count: int = 48, seed: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randn(count, 8, 6, generator=generator).split(16))


def start(model: nn.Module, inputs: list[torch.Tensor], **settings) -> tuple[PassState, PassContext]:
    recipe = preset("sformer")
    return PassState(calibrate(model, inputs, recipe), recipe), PassContext(model, inputs, **settings)


@cache
def _ready(count: int) -> tuple[nn.Module, list[torch.Tensor], PassState]:
    model, inputs = attention(), tokens(count)
    return model, inputs, start(model, inputs)[0]


def ready(count: int = 48, **settings) -> tuple[PassState, PassContext]:
    """The attention network after calibration on so many `tokens`, and a context with these settings."""
    model, inputs, state = _ready(count)
    return state, PassContext(model, inputs, **settings)


@cache
def passed(names: tuple[str, ...] = ALL, count: int = 48, **settings) -> tuple[PassState, PassContext]:
    """The attention network after these passes, and their context."""
    state, context = ready(count, **settings)
    return chain(state, context, names), context


def divergence(model, state, inputs) -> float:
    snn = state.network(model)
    with evaluating(snn), evaluating(model):
        p, q = (torch.cat([net(x) for x in inputs]).log_softmax(-1) for net in (model, snn))
    return float((p.exp() * (p - q)).sum(-1).mean())
