"""Gradients of a network in blocks: forward once, then back from the last block to the first, each computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from onespike.runtime.blocks import blocks_of
from onespike.runtime.lockstep import MOST, Conductor, Record, conducting

Around = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Work:
    """A forward whose result has a gradient, and a context that it and its way back run in."""

    forward: Callable[[], Tensor]
    around: Around

    def __call__(self) -> Tensor:
        with self.around():
            return self.forward()


def backwards(model: nn.Module, works: Iterable[Work]) -> None:
    """Take the gradients of what each piece of work returns.

    Where the network lies in blocks, its forward keeps what enters each block, and the way back computes one block
    after the other again, from the last to the first, with what came from behind it. Within a block the first forward
    runs without gradients: that is how a visitor knows that it will come again.
    """
    blocks = blocks_of(model)
    if blocks is None:
        for work in works:
            with work.around():
                work.forward().backward()
        return
    waiting, kept = iter(works), sum(unit.repeats for unit in blocks.units) or len(blocks.units)
    while first := list(islice(waiting, 1)):
        conductor = Conductor[Tensor](blocks, keeps=True)
        try:
            conductor.start(first[0])
            most = conductor.room(MOST, kept)
            together = [*first, *islice(waiting, most - 1)]
            for work in together[1:]:
                conductor.start(work)
            for loss in conductor.results():
                loss.backward(retain_graph=True)
            _way_back(
                conductor,
                [(w.around, worker.records) for w, worker in zip(together, conductor.workers, strict=True)],
            )
        finally:
            conductor.stop()


def _way_back(
    conductor: Conductor[Tensor],
    tapes: list[tuple[Around, list[Record]]],
) -> None:
    while rest := [(around, tape) for around, tape in tapes if tape]:
        unit = max((tape for _, tape in rest), key=len)[-1].unit
        group = [(around, tape) for around, tape in rest if tape[-1].unit is unit]
        conductor.load(unit, list({id(tape[-1].module): tape[-1].module for _, tape in group}.values()))
        with conducting():
            for around, tape in group:
                with around():
                    _through(tape.pop())
        conductor.free()


def _through(record: Record) -> None:
    """The gradients of one call of a unit, passed on to what it was called with."""
    given = [x for x in tree_leaves((record.args, record.kwargs)) if isinstance(x, Tensor)]
    copies = {id(x): x.detach().requires_grad_(x.requires_grad) for x in given}
    args, kwargs = tree_map_only(Tensor, lambda x: copies[id(x)], (record.args, record.kwargs))
    with torch.enable_grad():
        output = [x for x in tree_leaves(record.module(*args, **kwargs)) if isinstance(x, Tensor)]
    behind = [output[number] for number in record.gradients]
    _pass_on(behind, list(record.gradients.values()))
    known = {id(x): x for x in given}
    _pass_on(list(known.values()), [copies[key].grad for key in known], retain_graph=True)


def _pass_on(tensors: list[Tensor], gradients: list[Tensor | None], *, retain_graph: bool = False) -> None:
    """Gradients of tensors, as far as they have any, to what these were made of."""
    pairs = [(x, g) for x, g in zip(tensors, gradients, strict=True) if g is not None and x.requires_grad]
    if pairs:
        torch.autograd.backward([x for x, _ in pairs], [g for _, g in pairs], retain_graph=retain_graph)
