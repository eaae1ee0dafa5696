"""The inputs of a run: chosen from a folder, told from those that were used before, batched."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from onespike.adapters import LoadedModel
from onespike.runs.contents import digest
from onespike.runtime.processes import ALONE, Processes
from onespike.tasks import Items, Task, limit, unlabeled


def choose(data: str, count: int | None, task: Task | None = None) -> Items:
    """The inputs of a folder without labels, or `count` of them evenly spaced; images if no task is given."""
    items = unlabeled(data) if task is None else task.inputs(data)
    return items if count is None else limit(items, count)


def choose_labeled(
    loaded: LoadedModel, data: str, annotations: Path | None = None, count: int | None = None
) -> Items:
    """Inputs with what the network's task is scored by."""
    items = loaded.task.labeled(data, annotations, loaded)
    return items if count is None else limit(items, count)


def without(items: Items, names: Iterable[str]) -> Items:
    """The images whose names are not among these."""
    dropped = set(names)
    return dataclasses.replace(items, items=tuple(item for item in items if item.name not in dropped))


def overlap(used: Mapping[str, Any], items: Items) -> list[str]:
    """Images that calibration or a search has used already: what is measured on them is not a held-out figure."""
    seen = set(used.get("sha256", ()))
    return [item.name for item in items if digest(item) in seen] if seen else []


def batches_of(
    items: Items, loaded: LoadedModel, batch_size: int, processes: Processes = ALONE
) -> Iterator[Any]:
    """The inputs of this process in batches, without labels."""
    return (inputs for inputs, _ in loaded.batches(items, batch_size, processes.part))


def steps(items: Items, batch_size: int, processes: Processes) -> int:
    """Batches of this process."""
    return len(range(processes.rank * batch_size, len(items), processes.count * batch_size))


class Inputs(Sequence[Any]):
    """The batches of a list of images in a shuffled order, each read when it is asked for.

    Shuffled, since a folder is sorted by class, and a few batches must stand for all of them.
    """

    def __init__(self, items: Items, loaded: LoadedModel, batch_size: int) -> None:
        order = torch.randperm(len(items), generator=torch.Generator().manual_seed(0)).tolist()
        self.items = dataclasses.replace(items, items=tuple(items[i] for i in order))
        self.loaded, self.size = loaded, batch_size

    def __len__(self) -> int:
        return steps(self.items, self.size, ALONE)

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        part = self.items.items[index * self.size : (index + 1) * self.size]
        return next(batches_of(dataclasses.replace(self.items, items=part), self.loaded, self.size))
