"""Padding: which rows of an operand are tokens, and which only fill a batch up to its longest text."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from onespike.sites.site import Site

MASK, TOKENS = "attention_mask", "input_ids"


def mask_of(batch: Any) -> Tensor | None:
    """Return which tokens of a batch are real, (inputs, tokens); None if all are.

    The batch states it in `attention_mask`, of two dimensions or of four; in four, a row that sees nothing is padding.
    With a cache, the mask also covers tokens of earlier forwards.

    >>> mask_of({"input_ids": torch.zeros(2, 2), "attention_mask": torch.tensor([[1, 0, 1], [1, 1, 1]])})
    tensor([[False,  True],
            [ True,  True]])
    """
    if not isinstance(batch, Mapping) or not isinstance(batch.get(MASK), Tensor):
        return None
    mask, tokens = batch[MASK], batch.get(TOKENS)
    if mask.dim() == 4:
        seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        mask = seen.any(-1)[:, 0]
    if mask.dim() != 2 or (isinstance(tokens, Tensor) and len(tokens) != len(mask)):
        return None
    length = tokens.shape[1] if isinstance(tokens, Tensor) and tokens.dim() == 2 else mask.shape[1]
    mask = mask[:, -length:] != 0
    return None if bool(mask.all()) else mask


def token_lengths(batch: Any) -> set[int]:
    """Return the lengths of a batch's sequences of token numbers, which differ from text to text and while one is written."""
    leaves = [x for x in tree_leaves(batch) if isinstance(x, Tensor)]
    return {x.shape[1] for x in leaves if x.dim() == 2 and x.dtype in (torch.int32, torch.int64)}


def _token_axis(site: Site, x: Tensor, mask: Tensor | None) -> int | None:
    """Return an operand's token axis, counted from the back; None if no axis has this length."""
    if mask is None or x.dim() < 3 or len(x) != len(mask):
        return None
    # kᵀ has tokens last, v last but one; where both fit, attention multiplies by kᵀ first
    axes: tuple[int, ...] = (-2, -1) if (site.number or 0) % 2 else (-1, -2)
    if site.operation == "linear" or site.role == "lhs":
        axes = (-2,)
    elif site.operation != "matmul":
        return None
    return next((axis for axis in axes if x.shape[axis] == mask.shape[1]), None)


def real(site: Site, x: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return which elements of an operand belong to tokens, as a tensor that broadcasts to it; None for all."""
    axis = _token_axis(site, x, mask)
    if mask is None or axis is None:
        return None
    shape = [len(mask), *[1] * (x.dim() - 1)]
    shape[axis] = mask.shape[1]
    return mask.view(shape)


def without_padding(site: Site, x: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Return an operand without its padding: as it is, or input by input."""
    axis = _token_axis(site, x, mask)
    if mask is None or axis is None:
        return [x]
    rows = zip(x.split(1), mask, strict=True)
    return [row.index_select(axis, tokens.nonzero().flatten()) for row, tokens in rows if bool(tokens.any())]
