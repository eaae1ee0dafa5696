"""The inputs of a run: chosen from a folder, separated from those used before, batched."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from onespike.adapters import LoadedModel
from onespike.passes.parts import Parts, part_size
from onespike.runs.contents import digest
from onespike.runtime.processes import ALONE, Processes
from onespike.tasks import Items, Task, limit, unlabeled


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


def batches_of(
    items: Items, loaded: LoadedModel, batch_size: int, processes: Processes = ALONE
) -> Iterator[Any]:
    """Return the inputs of this process in batches, without labels."""
    return (inputs for inputs, _ in loaded.batches(items, batch_size, processes.part))


def steps(items: Items, batch_size: int, processes: Processes) -> int:
    """Return the number of batches of this process."""
    return len(range(processes.rank * batch_size, len(items), processes.count * batch_size))


class Inputs(Parts):
    """The parts of a list of images in shuffled order, each read on demand.

    They are shuffled because a folder is sorted by class, and a few parts must represent all classes.
    """

    def __init__(self, items: Items, loaded: LoadedModel) -> None:
        order = torch.randperm(len(items), generator=torch.Generator().manual_seed(0)).tolist()
        self.items = dataclasses.replace(items, items=tuple(items[i] for i in order))
        self.loaded = loaded

    @cached_property
    def size(self) -> int:
        """Return the number of images in a part."""
        first = dataclasses.replace(self.items, items=self.items.items[:1])
        return part_size(next(batches_of(first, self.loaded, 1)), len(self.items), self.loaded.task)

    def __len__(self) -> int:
        return steps(self.items, self.size, ALONE)

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        start = range(0, len(self.items), self.size)[index]
        part = self.items.items[start : start + self.size]
        return next(batches_of(dataclasses.replace(self.items, items=part), self.loaded, self.size))
