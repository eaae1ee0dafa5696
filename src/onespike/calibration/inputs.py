"""Calibration inputs: decoded once, in parts that depend on them and their order, not on the batches that they came in."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from onespike.adapters import LoadedModel
from onespike.runtime.batches import count, has_rows, join, take
from onespike.runtime.processes import ALONE, Processes
from onespike.sites.padding import MASK, mask_of
from onespike.tasks import Item, Items, Meaning, batches

MOST, ELEMENTS = 8, 8 * 3 * 224 * 224  # inputs per part, and how many numbers they may hold
MEMORY = 2**30  # bytes of decoded inputs that `Inputs` remembers; others are decoded whenever they are read


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
    """

    def __init__(self, batches: Sequence[Any], task: Meaning) -> None:
        self.batches, self.padded = batches, task.positional
        self.last: tuple[int, Any] = (-1, None)
        places = [
            (number, row)
            for number, batch in enumerate(batches)
            for row in (range(count(batch)) if has_rows(batch) else (None,))
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


def batches_of(items: Items, loaded: LoadedModel, batch_size: int) -> Iterator[Any]:
    return (inputs for inputs, _ in loaded.batches(items, batch_size))


def batch_count(items: Items, batch_size: int, processes: Processes = ALONE) -> int:
    """Return the number of batches of this process."""
    return len(range(processes.rank * batch_size, len(items), processes.count * batch_size))


class Inputs(Parts):
    """A list of images, each decoded once: in order for calibration, and for passes in parts of a shuffled order.

    They are shuffled because a folder is sorted by class, and a few parts must represent all classes.
    """

    def __init__(self, items: Items, loaded: LoadedModel) -> None:
        self.order = torch.randperm(len(items), generator=torch.Generator().manual_seed(0)).tolist()
        self.items, self.loaded = items, loaded
        self.decoded, self.room = dict[str, Any](), MEMORY

    def _decode(self, item: Item) -> Any:
        if item.name in self.decoded:
            return self.decoded[item.name]
        decoded = self.loaded.reading.transform(self.loaded.task.load(item))
        size = sum(x.nbytes for x in tree_leaves(decoded) if isinstance(x, Tensor))
        if size <= self.room:
            self.room -= size
            self.decoded[item.name] = decoded
        return decoded

    def _batches(self, items: Sequence[Item], batch_size: int, processes: Processes = ALONE) -> Iterator[Any]:
        settings: Any = {"part": processes.part, "collate": self.loaded.reading.collate, "load": self._decode}
        return (inputs for inputs, _ in batches(items, lambda decoded: decoded, batch_size, **settings))

    def one(self) -> Any:
        return next(self._batches(self.items.items[:1], 1))

    def stream(self, processes: Processes = ALONE) -> Iterator[Any]:
        """Return this process's part of the inputs, in their order."""
        return self._batches(self.items, self.size, processes)

    @cached_property
    def size(self) -> int:
        first = next(self._batches([self.items[self.order[0]]], 1))
        return part_size(first, len(self.items), self.loaded.task)

    def __len__(self) -> int:
        return batch_count(self.items, self.size)

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        start = range(0, len(self.items), self.size)[index]
        return next(self._batches([self.items[i] for i in self.order[start : start + self.size]], self.size))
