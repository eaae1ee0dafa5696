"""The inputs of a run: chosen from a folder, told apart by their contents, decoded once and batched."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from onespike.adapters import LoadedModel
from onespike.errors import DataError
from onespike.passes.parts import Parts, part_size
from onespike.runtime.atomic import sha256
from onespike.runtime.processes import ALONE, Processes
from onespike.tasks import Item, Items, Task, batches, limit, unlabeled

MEMORY = 2**30
"""Bytes of decoded inputs that `Inputs` remembers; further ones are decoded whenever they are read."""


def choose(data: str, count: int | None, task: Task | None = None) -> Items:
    """Return the inputs of a folder without labels, or `count` of them evenly spaced; images if no task is given."""
    items = unlabeled(data) if task is None else task.inputs(data)
    return items if count is None else limit(items, count)


def choose_labeled(
    loaded: LoadedModel, data: str, annotations: Path | None = None, count: int | None = None
) -> Items:
    """Return inputs with the labels that the network's task is scored by."""
    items = loaded.task.labeled(data, annotations)
    return items if count is None else limit(items, count)


def without(items: Items, names: Iterable[str]) -> Items:
    """Return the images whose names are not among these."""
    dropped = set(names)
    return dataclasses.replace(items, items=tuple(item for item in items if item.name not in dropped))


def overlap(used: Mapping[str, Any], items: Items) -> list[str]:
    """Return images that calibration or a search has used: a figure on them is not held-out."""
    seen = set(used.get("sha256", ()))
    return [item.name for item in items if digest(item) in seen] if seen else []


def calibration_images(loaded: LoadedModel, data: Mapping[str, Any]) -> Items:
    """Return the inputs that a run was calibrated on, checked by name and contents."""
    everything, names = choose(data["source"], None, loaded.task), set(data["names"])
    chosen = dataclasses.replace(everything, items=tuple(i for i in everything if i.name in names))
    if len(overlap(data, chosen)) != len(names):
        raise DataError(
            f"{data['source']}: the images that the run was calibrated on are not all there. Convert again."
        )
    return chosen


def network_digest(model: nn.Module) -> str:
    """Return the SHA-256 of a network's parameters and buffers with their names, types and shapes."""
    hashed = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        hashed.update(memoryview(flat.numpy()))
    return hashed.hexdigest()


def digest(item: Item) -> str:
    """Return what identifies an input: the hash of its contents, or its name within a bundled strip."""
    if item.sha256 is not None:
        return item.sha256
    if item.row is not None:
        return item.name
    state = item.path.stat()
    return _hashed(item.path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=1 << 17)
def _hashed(path: Path, size: int, changed: int) -> str:
    """Return the hash of a file, computed once while its size and time stay the same."""
    return sha256(path)


def images_digest(items: Items) -> str:
    """Return the SHA-256 of images in order: names, labels, contents, and everything else known about them."""
    rows = [[item.name, item.label, digest(item)] for item in items]
    record = [rows, None if items.truth is None else items.truth.record]
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def batches_of(
    items: Items, loaded: LoadedModel, batch_size: int, processes: Processes = ALONE
) -> Iterator[Any]:
    """Return the inputs of this process in batches, without labels."""
    return (inputs for inputs, _ in loaded.batches(items, batch_size, processes.part))


def batch_count(items: Items, batch_size: int, processes: Processes = ALONE) -> int:
    """Return the number of batches of this process."""
    return len(range(processes.rank * batch_size, len(items), processes.count * batch_size))


class Inputs(Parts):
    """A list of images, each decoded once: in order for calibration, and for passes in parts of a shuffled order.

    They are shuffled because a folder is sorted by class, and a few parts must represent all classes.
    """

    def __init__(self, items: Items, loaded: LoadedModel) -> None:
        order = torch.randperm(len(items), generator=torch.Generator().manual_seed(0)).tolist()
        self.items, self.loaded, self.order = items, loaded, order
        self.decoded: dict[str, Any] = {}
        self.room = MEMORY

    def _decode(self, item: Item) -> Any:
        if item.name in self.decoded:
            return self.decoded[item.name]
        decoded = self.loaded.reading.transform(self.loaded.task.load(item))
        size = sum(x.numel() * x.element_size() for x in tree_leaves(decoded) if isinstance(x, Tensor))
        if size <= self.room:
            self.room -= size
            self.decoded[item.name] = decoded
        return decoded

    def _batches(
        self, items: tuple[Item, ...], batch_size: int, processes: Processes = ALONE
    ) -> Iterator[Any]:
        some = dataclasses.replace(self.items, items=items)
        collate, part = self.loaded.reading.collate, processes.part
        decoded = batches(
            some, lambda decoded: decoded, batch_size, part=part, collate=collate, load=self._decode
        )
        return (inputs for inputs, _ in decoded)

    def one(self) -> Any:
        """Return the first input, in a batch of its own."""
        return next(self._batches(self.items.items[:1], 1))

    def stream(self, processes: Processes = ALONE) -> Iterator[Any]:
        """Return this process's part of the inputs, in their order."""
        return self._batches(self.items.items, self.size, processes)

    def total(self, processes: Processes = ALONE) -> int:
        """Return the number of batches in `stream`."""
        return batch_count(self.items, self.size, processes)

    @cached_property
    def size(self) -> int:
        """Return the number of images in a part."""
        first = next(self._batches((self.items[self.order[0]],), 1))
        return part_size(first, len(self.items), self.loaded.task)

    def __len__(self) -> int:
        return self.total()

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        start = range(0, len(self.items), self.size)[index]
        part = tuple(self.items[i] for i in self.order[start : start + self.size])
        return next(self._batches(part, self.size))
