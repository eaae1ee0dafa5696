"""Attention by its definition, through the product rule: fused and unfused networks have the same sites.

Probabilities must exist to be fired, but not all at once: long sequences are evaluated in blocks of query rows.
Where no visitor needs to see the probabilities, all of it may be one call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from threading import local
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from onespike.errors import UsageError
from onespike.sites.rules import matrix_product, synaptic, visited
from onespike.sites.site import Rows

if TYPE_CHECKING:
    from onespike.sites.visitor import Sites

BLOCK = 2**22
"""The number of attention probabilities that exist at a time, where they need not all exist at once."""


class Tokens(local):
    """The tokens that a thread's forward has merged so far: each key stands for so many, (inputs, keys); None for one each."""

    sizes: Tensor | None = None


TOKENS = Tokens()


def attention_sites(number: int) -> tuple[str, str, str, str]:
    """Return the keys of q, k, the probabilities and v, where q·kᵀ is the matrix product of this number."""
    first, second = f"matmul{number}", f"matmul{number + 1}"
    return f"{first}_lhs", f"{first}_rhs", f"{second}_lhs", f"{second}_rhs"


@synaptic(F.scaled_dot_product_attention)
def _attention(
    visit: Sites,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    query, key = query * (query.shape[-1] ** -0.5 if scale is None else scale), key.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-1], dtype=torch.bool, device=query.device).tril()
    hiding = attn_mask
    if TOKENS.sizes is not None:
        attn_mask = _weighed(TOKENS.sizes, key, attn_mask)
    if not dropout_p and (whole := visit.attend(query, key, value, attn_mask)) is not None:
        return whole
    visible = _visible(query, key, hiding)
    query, key = visited(visit, query, key, visible)
    blocks = list(_blocks(visit, query, key, value))
    if len(blocks) < 2:
        weights = F.dropout(_probabilities(torch.matmul(query, key), attn_mask), dropout_p)
        return torch.matmul(*visited(visit, weights, value, visible, weighted=True))
    result = query.new_empty(0)
    for rows in blocks:
        masked, seen = (None if x is None else rows.cut(x) for x in (attn_mask, visible))
        weights = F.dropout(_probabilities(torch.matmul(rows.cut(query), key), masked), dropout_p)
        lhs = visit(matrix_product(weights, value, seen, weighted=True), "lhs", rows)
        if rows.is_first:
            # the probabilities do not exist as a whole, so a shape stands for them
            shape = value.new_empty(()).expand(*value.shape[:-2], query.shape[-2], key.shape[-1])
            value = visit(matrix_product(shape, value, visible, weighted=True), "rhs")
        block = torch.matmul(lhs, value)
        if rows.is_first:
            result = block.new_empty(*block.shape[:-2], rows.of, block.shape[-1])
        result[..., rows.start : rows.stop, :] = block
        del weights, lhs, block  # lets the next block take their place
    return result


def _weighed(sizes: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Return what is added to scores so that a key counts as often as the tokens it stands for: log size."""
    if mask is not None or sizes.shape[-1] != key.shape[-1]:
        raise UsageError("merge: attention has a mask, or reads other tokens than those of its block.")
    return sizes.log()[:, None, None]


def _visible(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return which keys each query sees; None for all. Products that a mask hides are neither made nor counted."""
    if mask is None:
        return None
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return seen.expand(*seen.shape[:-2], query.shape[-2], key.shape[-1])


def _probabilities(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return torch.softmax(scores, -1)
    scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    # A fully masked row (left padding) gives zeros, as the fused kernel does, not NaN.
    weights: Tensor = torch.ops.aten._safe_softmax(scores, -1)
    return weights


def _blocks(visit: Sites, query: Tensor, key: Tensor, value: Tensor) -> Iterator[Rows]:
    """Return the blocks of attention rows that are evaluated together; none where all rows are one block.

    A compiler would unroll the blocks, and gradients keep every probability anyway.
    """
    if (
        torch.compiler.is_compiling()
        or not visit.blockwise
        or torch._C._get_tracing_state() is not None
        or (torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)))
    ):
        return
    batch = math.prod(torch.broadcast_shapes(query.shape[:-2], key.shape[:-2]))
    count, size = query.shape[-2], max(1, BLOCK // max(1, batch * key.shape[-1]))
    for start in range(0, count, size):
        yield Rows(start, min(start + size, count), count)
