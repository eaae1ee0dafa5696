"""torch's own transformer modules keep the contract, and their plain definitions are torch's."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from families import contract
from torch import Tensor, nn

from contract.conversion_contract import randomize_
from onespike.sites.unfused import encoder_layer, multi_head_attention, plain


def sequences(padded: bool = True) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    padding = torch.zeros(5, 6, dtype=torch.bool)
    padding[0, 4:] = padding[3, 5:] = True
    x = torch.randn(5, 6, 8, generator=generator)
    whole = {"x": x, "padding": padding} if padded else {"x": x}
    return [{name: part[rows] for name, part in whole.items()} for rows in (slice(2), slice(2, None))]


class Encoder(nn.Module):
    def __init__(self, depth: int, norm_first: bool, batch_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            16, 2, 32, 0.0, norm_first=norm_first, batch_first=batch_first, activation="gelu"
        )
        self.stem, self.head = nn.Linear(8, 16), nn.Linear(16, 7)
        self.encoder = nn.TransformerEncoder(
            layer, depth, enable_nested_tensor=not norm_first and batch_first
        )
        self.batch_first = batch_first

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        x = self.stem(x)
        x = x if self.batch_first else x.transpose(0, 1)
        x = self.encoder(x, src_key_padding_mask=padding)
        return self.head(x[:, 0] if self.batch_first else x[0])


class Attention(nn.Module):
    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 16), nn.Linear(16, 7)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        x = self.stem(x)
        x, _ = self.attention(x, x, x, key_padding_mask=padding, need_weights=self.need_weights)
        return self.head(x[:, 0])


FACTS = dict(inputs=("stem:linear0_input",), heads=("head:linear0_input",))
TestAttention, TestAttentionWithWeights = (
    contract(partial(Attention, weights), sequences, **FACTS, spiking=6, softmax=1, masked=not weights)
    for weights in (False, True)
)
TestEncoderUnpadded = contract(
    partial(Encoder, 1, False, True), partial(sequences, padded=False), **FACTS, spiking=8, softmax=1
)
TestEncoderNormFirstBatchSecond = contract(
    partial(Encoder, 1, True, False), sequences, **FACTS, spiking=8, softmax=1, masked=True
)
TestEncoder = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors:UserWarning"
)(  # the original's own
    contract(partial(Encoder, 2, False, True), sequences, **FACTS, spiking=16, softmax=2, masked=True)
)


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)
SETTINGS = {
    "as it comes": dict(),
    "no bias": dict(bias=False),
    "bias_k": dict(add_bias_kv=True),
    "zero attention": dict(add_zero_attn=True),
    "both": dict(add_bias_kv=True, add_zero_attn=True),
    "other widths": dict(kdim=6, vdim=10),
    "other widths and bias_k": dict(kdim=6, vdim=10, add_bias_kv=True),
}


def attention_inputs(module: nn.MultiheadAttention, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Batch 3, five queries; as self-attention, as cross attention with seven keys, or with keys apart from values."""
    query = rand(3, 5, 8)
    if kind == "self":
        return query, query, query
    key = rand(3, 7, module.kdim)
    return query, key, key if kind == "cross" else rand(3, 7, module.vdim)


@pytest.mark.parametrize(
    ("settings", "kind"),
    # keys and values of other widths cannot be the query
    [(s, k) for s in SETTINGS for k in ("self", "cross", "apart") if k == "apart" or "widths" not in s],
)
@pytest.mark.parametrize("mask", ["none", "padding", "float padding", "bool mask", "mask per head", "both"])
def test_plain_attention_is_torchs_own(settings, kind, mask):
    module = randomize_(nn.MultiheadAttention(8, 2, batch_first=True, **SETTINGS[settings]))
    query, key, value = attention_inputs(module, kind)
    keys = key.shape[1]
    padding = torch.zeros(3, keys, dtype=torch.bool)
    padding[0, 3:] = True
    square = torch.rand(5, keys, generator=torch.Generator().manual_seed(0)) < 0.3
    square[:, 0] = False
    masks = {
        "none": {},
        "padding": dict(key_padding_mask=padding),
        "float padding": dict(key_padding_mask=torch.zeros(3, keys).masked_fill(padding, -1.5)),
        "bool mask": dict(attn_mask=square),
        "mask per head": dict(attn_mask=rand(6, 5, keys)),
        "both": dict(key_padding_mask=padding, attn_mask=square),
    }[mask]
    for need_weights, average in ((True, True), (True, False), (False, True)):
        kwargs = dict(masks, need_weights=need_weights, average_attn_weights=average)
        with torch.no_grad():
            expected = module(query, key, value, **kwargs)
            close(multi_head_attention(module, query, key, value, **kwargs), expected)


@pytest.mark.parametrize(
    ("batch_first", "batched", "need_weights"), list(itertools.product((False, True), repeat=3))
)
def test_plain_attention_with_every_layout(batch_first, batched, need_weights):
    module = randomize_(nn.MultiheadAttention(8, 2, batch_first=batch_first))
    x = rand(3, 5, 8) if batched else rand(5, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1 if batched and batch_first else 0])
    for kwargs in (dict(need_weights=need_weights), dict(attn_mask=mask, is_causal=True, need_weights=False)):
        with torch.no_grad():
            expected = module(x, x, x, **kwargs)
            close(multi_head_attention(module, x, x, x, **kwargs), expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    ("norm_first", "batch_first", "padded"), list(itertools.product((False, True), repeat=3))
)
def test_plain_encoder_is_torchs_own(norm_first, batch_first, padded):
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, norm_first=norm_first, batch_first=batch_first)
    nested = not norm_first and batch_first
    model = randomize_(nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=nested))
    x = rand(3, 5, 8) if batch_first else rand(5, 3, 8)
    padding, real = None, ...  # what stands at padded places is nobody's business
    if padded:
        padding = torch.zeros(3, 5, dtype=torch.bool)
        padding[0, 3:] = True
        real = ~padding if batch_first else ~padding.T
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    with torch.no_grad():
        one = model.layers[0](x, src_key_padding_mask=padding)
        close(encoder_layer(model.layers[0], x, src_key_padding_mask=padding)[real], one[real])
        for kwargs in (dict(src_key_padding_mask=padding), dict(mask=mask, is_causal=True)):
            expected = model(x, **kwargs)
            with plain(model):
                close(model(x, **kwargs)[real], expected[real])
            assert "forward" not in model.__dict__
