"""Merging of tokens: behind each block of a transformer, the most similar neighbors become one token.

After ToMe (Bolya et al., 2023), but only neighbors are compared, so that finding pairs costs next to nothing, and whole
blocks are wrapped, so that no architecture need be known: a block takes and gives (inputs, tokens, channels).
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from onespike.conversion.attach import unwrap_, wrap_
from onespike.errors import UsageError
from onespike.sites.attention import TOKENS
from onespike.sites.unfused import PLAIN


def merge(x: Tensor, sizes: Tensor | None, pairs: int, first: int) -> tuple[Tensor, Tensor]:
    """Replace the most similar of the tokens (first, first + 1), (first + 2, first + 3), … by their mean, in their order.

    Similar are those of the largest cosine; `sizes` (inputs, tokens), how many tokens each stands for, weigh the mean.

    >>> x, sizes = merge(torch.tensor([[[9.0], [1.0], [3.0], [-5.0], [2.0]]]), None, 1, 1)
    >>> x.flatten().tolist(), sizes.tolist()
    ([9.0, 2.0, -5.0, 2.0], [[1.0, 2.0, 1.0, 1.0]])
    """
    sizes = torch.ones_like(x[..., 0]) if sizes is None else sizes
    count, tokens = (x.shape[1] - first) // 2, x.shape[1]
    left, right = x[:, first : first + 2 * count].unflatten(1, (count, 2)).unbind(2)
    lengths = left.norm(dim=-1) * right.norm(dim=-1)
    similar = (left * right).sum(-1) / lengths.clamp(min=torch.finfo(x.dtype).tiny)
    targets = 2 * similar.topk(pairs).indices + first
    gone = torch.zeros_like(sizes, dtype=torch.int64).scatter(1, targets + 1, tokens)
    # where a token goes its place counts as behind all others, so that the rest stays in order
    order = (torch.arange(tokens, device=x.device) + gone).sort().values[:, : tokens - pairs]
    weighted = torch.cat((x * sizes[..., None], sizes[..., None]), -1)
    along = targets[..., None].expand(-1, -1, weighted.shape[-1])
    weighted = weighted.scatter_add(1, along, weighted.gather(1, along + 1))
    weighted = weighted.gather(1, order[..., None].expand(-1, -1, weighted.shape[-1]))
    return weighted[..., :-1] / weighted[..., -1:], weighted[..., -1]


def _merging_forward(module: Any, before: Any, number: int, pairs: int, *args: Any, **kwargs: Any) -> Any:
    """Run a block, whose attention weighs keys by their sizes, and merge what it gives; odd blocks pair other neighbors."""
    forward = before or partial(PLAIN.get(type(module).forward, type(module).forward), module)
    if not number:
        TOKENS.sizes = None
    output = forward(*args, **kwargs)
    x = output[0] if isinstance(output, tuple) else output
    if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[1] < 2 * pairs + 3:
        raise UsageError("merge: a block gives no tensor of (inputs, tokens, channels) with tokens to spare.")
    x, TOKENS.sizes = merge(x, TOKENS.sizes, pairs, 1 + number % 2)
    return (x, *output[1:]) if isinstance(output, tuple) else x


def _settled_forward(module: Any, before: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the network, after which no sizes are left for the attention of another one."""
    try:
        return (before or partial(type(module).forward, module))(*args, **kwargs)
    finally:
        TOKENS.sizes = None


def attach_merging_(model: nn.Module, pairs: Mapping[str, int]) -> None:
    """Let blocks, by their names in the order in which they run, merge so many pairs of tokens each."""
    for number, (name, count) in enumerate(pairs.items()):
        wrap_(model.get_submodule(name), _merging_forward, number, count)
    if pairs:
        wrap_(model, _settled_forward)


def detach_merging_(model: nn.Module) -> None:
    """Undo `attach_merging_`."""
    for module in model.modules():
        unwrap_(module, _merging_forward, _settled_forward)


@contextmanager
def merging(model: nn.Module, pairs: Mapping[str, int]) -> Iterator[None]:
    """Merge tokens in a network that is not converted; attention weighs sizes wherever its operands are visited."""
    attach_merging_(model, pairs)
    try:
        yield
    finally:
        detach_merging_(model)


def blocks_of(attentions: Iterable[str]) -> list[str]:
    """Return the largest module around each attention that holds no other, but for the last, behind which nothing attends.

    >>> blocks_of(["blocks.0.attn", "blocks.1.attn", "blocks.2.attn", "pool"])
    ['blocks.0', 'blocks.1', 'blocks.2']
    """
    owners = list(attentions)
    blocks = []
    for owner in owners:
        parts = owner.split(".")
        around = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
        alone = [name for name in around if sum(f"{other}.".startswith(f"{name}.") for other in owners) == 1]
        blocks += alone[:1]
    return blocks[:-1] if len(blocks) == len(set(blocks)) == len(owners) else []
