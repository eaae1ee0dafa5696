"""Gradients of a network in blocks: forward once, then back from the last block to the first, each computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from onespike.errors import UsageError
from onespike.runtime.forward import Around
from onespike.runtime.offload.lockstep import Call, Conductor

PLAIN = (Tensor, bool, int, float, str)
"""What a block may return where gradients are wanted, in tuples, lists and mappings."""


@dataclass
class _Record:
    """A call on the way forward, and what came back to each of its results."""

    call: Call
    versions: list[int]
    gradients: dict[int, Tensor] = field(default_factory=dict)


class Tape:
    """What enters the units of one forward, recorded for the way back.

    Within a unit the first forward runs without gradients: that is how a visitor knows that it will come again.
    """

    def __init__(self, around: Around) -> None:
        self.around = around
        self.records: list[_Record] = []

    def enter(self, call: Call) -> None:
        self.records.append(_Record(call, [x._version for x in call.tensors()]))
        torch.set_grad_enabled(False)

    def leave(self, output: Any) -> Any:
        torch.set_grad_enabled(True)
        if not self.records:  # stopped before its first unit
            return output
        record = self.records[-1]
        name, remedy = (
            record.call.unit.name,
            "Leave out the passes that need them, or take another device map.",
        )
        if [x._version for x in record.call.tensors()] != record.versions:
            raise UsageError(
                f"blocks: {name} overwrites its input, so that its gradients cannot be taken afterwards. {remedy}"
            )
        leaves = tree_leaves(output)
        hidden = [x for x in leaves if x is not None and not isinstance(x, PLAIN)]
        if hidden:
            raise UsageError(
                f"blocks: {name} returns a {type(hidden[0]).__name__}, through which gradients cannot be followed. {remedy}"
            )
        numbers = iter(range(len(leaves)))
        return tree_map_only(Tensor, lambda x: _leaving(x, record, next(numbers)), output)


def _leaving(x: Tensor, record: _Record, number: int) -> Tensor:
    if not x.is_floating_point():
        return x
    anchor = torch.zeros((), device=x.device, requires_grad=True)
    left: Tensor = _Leaving.apply(anchor, x, record, number)
    return left


class _Leaving(torch.autograd.Function):
    """What leaves a block: the same values, whose gradients are recorded for the way back through it."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, record: _Record, number: int) -> Tensor:
        ctx.record, ctx.number = record, number
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        sums = ctx.record.gradients
        earlier = sums.get(ctx.number)
        sums[ctx.number] = gradients[0] if earlier is None else earlier + gradients[0]
        return None, None, None, None


def backwards(
    fitting: Callable[[int], int], works: Iterable[tuple[Callable[[], Tensor], Around]], copies: int
) -> None:
    """Take the gradients of what each piece of work returns, within its context.

    The forward keeps what enters each block, `copies` in all, and the way back computes one block after the other
    again, from the last to the first, with what came from behind it.
    """

    def within(forward: Callable[[], Tensor], around: Around) -> Tensor:
        with around():
            return forward()

    waiting = ((lambda work=work: within(*work), Tape(work[1])) for work in works)
    for first in waiting:
        with Conductor(fitting) as conductor:
            conductor.gather(first, waiting, copies)
            for loss in conductor.results():
                loss.backward(retain_graph=True)
            _way_back(conductor, [worker.recorder for worker in conductor.workers])


def _way_back(conductor: Conductor, tapes: list[Any]) -> None:
    while rest := [tape for tape in tapes if tape.records]:
        unit = max(rest, key=lambda tape: len(tape.records)).records[-1].call.unit
        group = [tape for tape in rest if tape.records[-1].call.unit is unit]
        conductor.load(unit, [tape.records[-1].call.module for tape in group])
        for tape in group:
            with tape.around():
                _through(tape.records.pop())
        conductor.free()


def _through(record: _Record) -> None:
    """The gradients of one call of a unit, passed on to what it was called with."""
    call = record.call
    entered = {id(x): x for x in call.tensors()}
    copies = {key: x.detach().requires_grad_(x.requires_grad) for key, x in entered.items()}
    args, kwargs = tree_map_only(Tensor, lambda x: copies[id(x)], (call.args, call.kwargs))
    with torch.enable_grad():
        output = [x for x in tree_leaves(call.module(*args, **kwargs)) if isinstance(x, Tensor)]
    _pass_on((output[number], gradient) for number, gradient in record.gradients.items())
    _pass_on(((x, copies[key].grad) for key, x in entered.items()), retain_graph=True)


def _pass_on(pairs: Iterable[tuple[Tensor, Tensor | None]], *, retain_graph: bool = False) -> None:
    """Gradients of tensors, as far as they have any, to what these were made of."""
    wanted = [(x, gradient) for x, gradient in pairs if gradient is not None and x.requires_grad]
    if wanted:
        tensors, gradients = zip(*wanted, strict=True)
        torch.autograd.backward(tensors, gradients, retain_graph=retain_graph)
