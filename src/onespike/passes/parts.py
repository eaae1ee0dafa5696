"""Calibration inputs in parts that depend on the inputs and their order, not on the batches that they came in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from onespike.runtime.batches import count, join, take
from onespike.sites.padding import MASK, mask_of
from onespike.tasks import Meaning

MOST, ELEMENTS = 8, 8 * 3 * 224 * 224
"""Inputs per part, and how many numbers they may hold."""


def part_size(first: Any, inputs: int, task: Meaning) -> int:
    """Return the inputs per part: eight images, fewer large ones, one window of a text; a fourth of few inputs.

    Some passes judge by inputs that they did not see, so one part is never all there is.
    """
    elements = sum(x.numel() for x in tree_leaves(first) if isinstance(x, Tensor))
    return max(1, min(MOST * task.enough // 256, ELEMENTS // max(elements, 1), -(-inputs // 4)))


class Parts(Sequence[Any]):
    """The inputs of any batches, cut anew. A product's last bit depends on its size, so that sizes must not differ.

    Inputs of one part have one shape. Where positions have no meaning, padding is left out: it depends on the other
    texts of a batch. A batch with something that all its inputs share stays whole.

    >>> import torch
    >>> from onespike.tasks import Inferred
    >>> cuts = [torch.arange(10.0).view(10, 1).split(size) for size in (2, 3, 10)]
    >>> [[len(part) for part in Parts(cut, Inferred())] for cut in cuts]
    [[3, 3, 3, 1], [3, 3, 3, 1], [3, 3, 3, 1]]
    """

    def __init__(self, batches: Sequence[Any], task: Meaning) -> None:
        self.batches, self.padded = batches, task.positional
        self.last: tuple[int, Any] = (-1, None)
        places = [
            (number, row)
            for number, batch in enumerate(batches)
            for row in (range(count(batch)) if _has_rows(batch) else (None,))
        ]
        self.parts: list[list[tuple[int, int | None]]] = []
        size, before = 1, None
        for number, row in places:
            one = self._input(number, row)
            size = size if self.parts else part_size(one, len(places), task)
            shape = [x.shape if isinstance(x, Tensor) else x for x in tree_leaves(one)]
            if row is None or shape != before or len(self.parts[-1]) == size:
                self.parts.append([])
            self.parts[-1].append((number, row))
            before = None if row is None else shape

    def _input(self, number: int, row: int | None) -> Any:
        if self.last[0] != number:  # neighbors come from one batch, which may be read on demand
            self.last = number, self.batches[number]
        batch = self.last[1]
        if row is None:
            return batch
        one = take(batch, slice(row, row + 1))
        tokens = None if self.padded else mask_of(one)
        if tokens is None or one[MASK].dim() > 2:
            return one
        chosen, length = tokens[0].nonzero().flatten(), tokens.shape[1]
        return tree_map_only(
            Tensor, lambda x: x.index_select(1, chosen) if x.dim() > 1 and x.shape[1] == length else x, one
        )

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        return join([self._input(number, row) for number, row in self.parts[index]])


def _has_rows(batch: Any) -> bool:
    """Return whether everything in a batch has one row per input: then nothing is left of it where none is taken."""
    rest = tree_leaves(take(batch, slice(0, 0)))
    return all(not x.dim() or not len(x) for x in rest if isinstance(x, Tensor))
