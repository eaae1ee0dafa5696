"""Gradients of a network in blocks: each block runs without them first, and is computed again on the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from onespike.errors import UsageError
from onespike.runtime.forward import TURN
from onespike.runtime.offload.stored import Unit

PLAIN = (Tensor, bool, int, float, str, type(None))
"""What a block may return where gradients are wanted, in tuples, lists and mappings."""
REMEDY = "Leave out the passes that need them, or take another device map."


@dataclass
class Call:
    """One call of a unit."""

    unit: Unit
    module: nn.Module
    args: Any
    kwargs: Any

    def tensors(self) -> list[Tensor]:
        return [x for x in tree_leaves((self.args, self.kwargs)) if isinstance(x, Tensor)]

    def size(self) -> int:
        """Bytes of the tensors that are handed over."""
        sizes = {x.untyped_storage().data_ptr(): x.nbytes for x in self.tensors()}
        return sum(sizes.values())

    def versions(self) -> list[int]:
        return [x._version for x in self.tensors()]


def followed(call: Call, versions: list[int], output: Any) -> Any:
    """What a call returned without gradients, with a way back through the same call."""
    if call.versions() != versions:
        raise UsageError(
            f"blocks: {call.unit.name} overwrites its input, so that its gradients cannot be taken afterwards. {REMEDY}"
        )
    if hidden := [type(x).__name__ for x in tree_leaves(output) if not isinstance(x, PLAIN)]:
        raise UsageError(
            f"blocks: {call.unit.name} returns a {hidden[0]}, through which gradients cannot be followed. {REMEDY}"
        )
    values = _real(output)
    if not values:
        return output
    entered = {id(x): x for x in call.tensors()}
    anchor = torch.zeros((), requires_grad=True)  # gradients may begin within the block
    leaving = iter(_Again.apply(anchor, call, values, *entered.values()))
    return tree_map_only(Tensor, lambda x: next(leaving) if x.is_floating_point() else x, output)


def _real(output: Any) -> list[Tensor]:
    return [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()]


class _Again(torch.autograd.Function):
    """The values of a call on the way forward, and the call itself on the way back."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, call: Call, values: list[Tensor], *entered: Tensor) -> Any:
        ctx.call, ctx.entered = call, entered
        ctx.set_materialize_grads(False)
        return tuple(x.detach() for x in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        call = ctx.call
        copies = {id(x): x.detach().requires_grad_(x.requires_grad) for x in ctx.entered}
        args, kwargs = tree_map_only(Tensor, lambda x: copies[id(x)], (call.args, call.kwargs))
        TURN.worker.again = True
        try:
            with torch.enable_grad():
                output = _real(call.module(*args, **kwargs))
        finally:
            TURN.worker.again = False
        pairs = zip(output, gradients, strict=True)
        reached = [(x, gradient) for x, gradient in pairs if gradient is not None and x.requires_grad]
        if reached:
            torch.autograd.backward([x for x, _ in reached], [gradient for _, gradient in reached])
        return None, None, None, *(x.grad for x in copies.values())
