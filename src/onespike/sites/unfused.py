"""torch's attention modules without their fused kernels, so that their products can be visited.

`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` switch to fused C++ in evaluation, where no operand can be
reached. While a network is visited or converted, they run these definitions instead.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))


def _project(module: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three projections; operands that are the same tensor share one product, as in torch."""
    width, bias, inputs = module.embed_dim, module.in_proj_bias, (query, key, value)
    sizes = [width, 2 * width] if key is value else [width] * 3
    sizes = [3 * width] if query is key and key is value else sizes
    weights: Sequence[Tensor]
    if not module._qkv_same_embed_dim:
        sizes, weights = [width] * 3, (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    else:  # all of a weight is a parameter, parts of one are not
        weights = (module.in_proj_weight,) if len(sizes) == 1 else module.in_proj_weight.split(sizes)
    biases = (None,) * 3 if bias is None else bias.split(sizes)
    products = (F.linear(x, weight, b) for x, weight, b in zip(inputs, weights, biases, strict=False))
    q, k, v = (part for product in products for part in product.split(width, -1))
    return q, k, v


def multi_head_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`nn.MultiheadAttention.forward`, written with linear maps and two products."""
    batched = query.dim() == 3
    self_attention, shared = query is key and key is value, key is value

    def batch_first(x: Tensor) -> Tensor:
        x = x if batched else x.unsqueeze(0 if module.batch_first else 1)
        return x if module.batch_first else x.transpose(0, 1)

    query = batch_first(query)
    key = query if self_attention else batch_first(key)
    value = key if shared else batch_first(value)
    q, k, v = _project(module, query, key, value)
    batch, heads = q.shape[0], module.num_heads
    if module.bias_k is not None:
        k = torch.cat([k, module.bias_k.expand(batch, 1, -1)], 1)
        v = torch.cat([v, module.bias_v.expand(batch, 1, -1)], 1)
    if module.add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
    extra = k.shape[1] - key.shape[1]
    q, k, v = (torch.unflatten(x, -1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    mask = None
    if attn_mask is not None:
        mask = F.pad(_additive(attn_mask, q), (0, extra))
        mask = torch.unflatten(mask, 0, (batch, heads)) if mask.dim() == 3 else mask
    if key_padding_mask is not None:
        padding = F.pad(_additive(key_padding_mask, q), (0, extra)).view(batch, 1, 1, -1)
        mask = padding if mask is None else mask + padding
    if need_weights:
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        scores = scores if mask is None else scores + mask
        weights = F.dropout(torch.softmax(scores, -1), module.dropout, module.training)
        mixed = weights @ v
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, mask, module.dropout if module.training else 0.0)
    output = F.linear(mixed.transpose(1, 2).flatten(2), module.out_proj.weight, module.out_proj.bias)
    output = output if module.batch_first else output.transpose(0, 1)
    output = output if batched else output.squeeze(0 if module.batch_first else 1)
    if not need_weights:
        return output, None
    weights = weights.mean(1) if average_attn_weights else weights
    return output, weights if batched else weights.squeeze(0)


def encoder_layer(
    module: Any,
    src: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """`nn.TransformerEncoderLayer.forward` without the fused layer."""
    masks = (src_mask, src_key_padding_mask, is_causal)
    if module.norm_first:
        src = src + module._sa_block(module.norm1(src), *masks)
        return src + module._ff_block(module.norm2(src))  # type: ignore[no-any-return]
    src = module.norm1(src + module._sa_block(src, *masks))
    return module.norm2(src + module._ff_block(src))  # type: ignore[no-any-return]


def encoder(
    module: Any,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    """`nn.TransformerEncoder.forward` without nested tensors."""
    for layer in module.layers:
        src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
    return src if module.norm is None else module.norm(src)


PLAIN: dict[Any, Callable[..., Any]] = {
    nn.MultiheadAttention.forward: multi_head_attention,
    nn.TransformerEncoderLayer.forward: encoder_layer,
    nn.TransformerEncoder.forward: encoder,
}
"""The forward of a module with fused kernels → its plain definition; subclasses that inherit it are included."""


@contextmanager
def plain(model: nn.Module) -> Iterator[None]:
    """Run torch's fused attention modules by their plain definitions within this context."""
    fused = [m for m in model.modules() if type(m).forward in PLAIN and "forward" not in m.__dict__]
    for module in fused:
        module.forward = partial(PLAIN[type(module).forward], module)
    try:
        yield
    finally:
        for module in fused:
            del module.forward
