"""A network, its converted copy and a loader as a pair and its inputs: what every command takes, without files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from onespike.adapters import LoadedModel, Reading
from onespike.adapters.user_file import OWN
from onespike.conversion.network import conversion_of, set_scale_
from onespike.errors import DataError, UsageError, unknown
from onespike.passes import no_progress
from onespike.passes.base import Progress
from onespike.recipe import preset
from onespike.runs.own import no_transform
from onespike.runs.pair import NetworkPair
from onespike.runs.search_run import objective_of
from onespike.runtime.batches import call, count, take, to
from onespike.runtime.forward import device_of, evaluating
from onespike.scale_search import Search
from onespike.scale_search import search as search_scale
from onespike.tasks import Item, Items, Numbers, Task, infer


@dataclass(frozen=True)
class InMemory(Reading):
    """Batches in memory; an item's content is its batch and its place there."""

    held: tuple[Any, ...] = ()

    def batches(
        self, items: Items, batch_size: int, part: tuple[int, int], load: Callable[[Item], Any]
    ) -> Iterator[tuple[Any, Tensor | None]]:
        """Return the loader's batches, or parts of them; no batch is joined with another, since they may differ in form."""
        for number, group in groupby(items, key=lambda item: item.content[0]):
            members = list(group)
            for start in range(0, len(members), batch_size):
                chosen = members[start : start + batch_size]
                labels = [item.label for item in chosen if item.label is not None]
                inputs = take(self.held[number], torch.tensor([item.content[1] for item in chosen]))
                yield inputs, torch.tensor(labels) if len(labels) == len(chosen) else None


def in_memory(
    model: nn.Module, snn: nn.Module, loader: Iterable[tuple[Any, Any]], task: Task | None = None
) -> tuple[NetworkPair, Items]:
    """Return both networks as a pair, and the loader's (inputs, labels) as its items; labels may be None."""
    conversion, held, items = conversion_of(snn), list[Any](), list[Item]()
    for number, (inputs, labels) in enumerate(loader):
        held.append(inputs)
        for place in range(count(inputs)):
            label = None if labels is None else int(labels[place])
            name = f"input {len(items)}"
            items.append(Item(name, label, Path(name), row=len(items), content=(number, place)))
    if not items:
        raise DataError("the loader gives no inputs. Give at least one batch of (inputs, labels).")
    if task is None:
        with evaluating(model):
            meaning = infer(call(model, to(take(held[0], slice(0, 2)), device_of(model))))
        if isinstance(meaning, Numbers):
            raise UsageError(
                "the network's output is not scores of classes. Give its task: a subclass of tasks.Task."
            )
        task = cast(Task, meaning)  # scores of classes have one
    spec = f"{OWN}{type(model).__module__}.{type(model).__qualname__}"
    reading = InMemory(no_transform, "as the loader gives it", held=tuple(held))
    loaded = LoadedModel(model, spec, reading, task, "own")
    data = {"source": "Python", "names": [], "sha256": []}
    pair = NetworkPair(loaded, model, snn, conversion.recipe, conversion.thresholds, data)
    return pair, Items("Python", tuple(items))


def search(
    model: nn.Module,
    snn: nn.Module,
    loader: Iterable[tuple[Any, Any]],
    *,
    objective: str | None = None,
    trials: int = 50,
    sampler: str = "gp",
    budget: float | None = None,
    energy: str | None = None,
    task: Task | None = None,
    progress: Progress = no_progress,
) -> Search:
    """Find the best λ of a converted network and set it there.

    Args:
        model: the original network.
        snn: its converted copy.
        loader: (inputs, labels) that neither calibration nor a later evaluation sees; labels may be None.
        objective: `kl`, which needs no labels, or another of the task; by default its accuracy where there are labels.
        trials: how many λ are tried.
        sampler: `gp`, `tpe` or `grid`.
        budget: the largest energy ratio allowed.
        energy: the energy column; that of the recipe by default.
        task: the meaning of the output; classification by default.
        progress: progress(title, total) wraps the batches of a long stage.
    """
    pair, items = in_memory(model, snn, loader, task)
    column = None if budget is None else energy or pair.recipe.energy
    name = objective or pair.loaded.task.objective(items)
    if name not in pair.loaded.task.objectives:
        raise unknown("objective", name, pair.loaded.task.objectives)
    aim = pair.loaded.task.objectives[name]
    feed = progress("original network", len(items))(pair.loaded.batches(items, len(items)))
    found = search_scale(
        objective_of(pair, items, feed, aim, column),
        trials=trials,
        maximize=aim.maximize,
        fixed=(1.0, preset(pair.recipe.preset).scale),
        sampler=sampler,
        budget=budget,
    )
    set_scale_(snn, found.best.scale)
    return found
