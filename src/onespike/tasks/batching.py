"""A list of inputs → batches; threads read ahead."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from onespike.errors import DataError, UsageError
from onespike.tasks.images import Item, Items, read_image


def check_batch_size(size: int) -> None:
    if size < 1:
        raise UsageError(f"batch size must be at least 1, not {size}. Try 32.")


def batches(
    items: Items,
    transform: Callable[[Any], Any],
    batch_size: int,
    *,
    part: tuple[int, int] = (0, 1),
    collate: Callable[[list[Any]], Any] | None = None,
    load: Callable[[Item], Any] | None = None,
    threads: int = 2,
) -> Iterator[tuple[Any, Tensor | None]]:
    """Yield batches of (inputs, labels) in list order; threads read ahead by one batch.

    Labels are None if one image of the batch has none. With `part=(i, n)`, only every n-th batch from the
    i-th on is read: the share of one of n processes. `collate` makes a network's input from the images' tensors, which
    may then differ in size; without it they are stacked. `load` reads what the transform takes, by default an image.
    """
    check_batch_size(batch_size)
    first, count = part
    mine = tuple(item for place, item in enumerate(items) if place // batch_size % count == first)
    read = load or read_image
    return _batches(
        dataclasses.replace(items, items=mine),
        lambda item: transform(read(item)),
        batch_size,
        collate,
        threads,
    )


def _batches(
    items: Items,
    load: Callable[[Item], Any],
    batch_size: int,
    collate: Callable[[list[Any]], Any] | None,
    threads: int,
) -> Iterator[tuple[Any, Tensor | None]]:
    pool = ThreadPoolExecutor(threads, thread_name_prefix="onespike-images")
    try:
        waiting: deque[Future[Any]] = deque()
        ahead = iter(items)
        for start in range(0, len(items), batch_size):
            batch = items.items[start : start + batch_size]
            waiting.extend(pool.submit(load, i) for i in islice(ahead, 2 * batch_size - len(waiting)))
            inputs = [waiting.popleft().result() for _ in batch]
            labels = [item.label for item in batch if item.label is not None]
            together = _stack(inputs, batch) if collate is None else collate(inputs)
            yield together, torch.tensor(labels) if len(labels) == len(batch) else None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _stack(inputs: list[Tensor], batch: Sequence[Item]) -> Tensor:
    odd = next((i for i, x in enumerate(inputs) if x.shape != inputs[0].shape), None)
    if odd is not None:
        raise DataError(
            f"{batch[odd].name}: its input has shape {tuple(inputs[odd].shape)}, and that of {batch[0].name} "
            f"{tuple(inputs[0].shape)}. Use a transform that gives all images one size."
        )
    return torch.stack(inputs)
