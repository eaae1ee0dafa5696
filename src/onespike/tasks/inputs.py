"""A list of inputs → batches; threads read ahead."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onespike.errors import DataError, UsageError

Batches = Iterator[tuple[Any, Tensor | None]]  # inputs, and their labels; None if one of them has none


@dataclass(frozen=True)
class Item:
    """One input: a file, one row of a strip, or a part of a file that was already read."""

    name: str
    label: int | None  # what it is scored by: a class, or a number by which a metric finds the truth
    path: Path
    row: int | None = None  # its place in a file that holds several
    id: int | None = None  # its number in a COCO file
    # what was read of such a file, and its hash
    content: Any = field(default=None, repr=False, compare=False)
    sha256: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Items(Sequence[Item]):
    """Inputs in order, their source, class names if the source gives them, and truth beyond labels."""

    source: str
    items: tuple[Item, ...]
    class_names: tuple[str, ...] | None = None
    truth: Any = field(default=None, repr=False)

    @classmethod
    def read(cls, source: str, parts: Iterable[tuple[str, Any, bytes]]) -> Items:
        """Return the parts of a source that was read, by name, content and bytes; their labels are their places."""
        items = (
            Item(name, i, Path(source), i, None, content, hashlib.sha256(data).hexdigest())
            for i, (name, content, data) in enumerate(parts)
        )
        return cls(source, tuple(items))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Item:  # type: ignore[override]
        return self.items[index]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(item.name for item in self.items)

    @property
    def labeled(self) -> bool:
        return all(item.label is not None for item in self.items)

    @property
    def contents(self) -> dict[int, Any]:
        """Return what was read, by the labels that a batch brings."""
        return {int(item.label or 0): item.content for item in self.items}


def limit(items: Items, count: int | None) -> Items:
    """Return `count` images evenly spaced over the list, or all of them if there are fewer or no count is given.

    >>> ten = Items("ten", tuple(Item(str(i), None, Path()) for i in range(10)))
    >>> limit(ten, 4).names
    ('0', '2', '5', '7')
    """
    if count is None:
        return items
    if count < 1:
        raise UsageError(f"limit must be at least 1, not {count}. Leave it out for all {len(items)} images.")
    count = min(count, len(items))
    return dataclasses.replace(items, items=tuple(items[i * len(items) // count] for i in range(count)))


def check_batch_size(size: int) -> None:
    if size < 1:
        raise UsageError(f"batch size must be at least 1, not {size}. Try 32.")


def batches(
    items: Sequence[Item],
    transform: Callable[[Any], Any],
    batch_size: int,
    *,
    part: tuple[int, int] = (0, 1),
    collate: Callable[[list[Any]], Any] | None = None,
    load: Callable[[Item], Any] | None = None,
    threads: int = 2,
) -> Batches:
    """Yield batches of (inputs, labels) in list order; threads read ahead by one batch.

    With `part=(i, n)`, only every n-th batch from the i-th on is read: the share of one of n processes. `collate` makes
    a network's input from the images' tensors, which may then differ in size; without it they are stacked. `load` reads
    what the transform takes, by default an image.
    """
    from onespike.tasks.images import read_image

    check_batch_size(batch_size)
    load = load or read_image
    mine = [item for place, item in enumerate(items) if place // batch_size % part[1] == part[0]]
    pool = ThreadPoolExecutor(threads, thread_name_prefix="onespike-images")
    try:
        waiting: deque[Future[Any]] = deque()
        ahead = iter(mine)
        for start in range(0, len(mine), batch_size):
            batch, more = mine[start : start + batch_size], 2 * batch_size - len(waiting)
            waiting.extend(pool.submit(lambda one: transform(load(one)), one) for one in islice(ahead, more))
            inputs = [waiting.popleft().result() for _ in batch]
            labels = [item.label for item in batch if item.label is not None]
            together = _stack(inputs, batch) if collate is None else collate(inputs)
            yield together, torch.tensor(labels) if len(labels) == len(batch) else None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _stack(inputs: list[Tensor], batch: Sequence[Item]) -> Tensor:
    for item, x in zip(batch, inputs, strict=True):
        if x.shape != inputs[0].shape:
            raise DataError(
                f"{item.name}: its input has shape {tuple(x.shape)}, and that of {batch[0].name} "
                f"{tuple(inputs[0].shape)}. Use a transform that gives all images one size."
            )
    return torch.stack(inputs)
