"""The inputs of a run: chosen from a folder, and told apart by their contents."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onespike.adapters import LoadedModel
from onespike.errors import DataError, UsageError
from onespike.runtime.atomic import sha256
from onespike.runtime.validated import checksum
from onespike.tasks import Item, Items, Task, limit, unlabeled


def choose(data: str, count: int | None, task: Task | None = None) -> Items:
    """Return the inputs of a folder without labels, or `count` of them evenly spaced; images if no task is given."""
    return limit(unlabeled(data) if task is None else task.inputs(data), count)


def choose_labeled(
    loaded: LoadedModel, data: str, annotations: Path | None = None, count: int | None = None
) -> Items:
    """Return inputs with the labels that the network's task is scored by."""
    return limit(loaded.task.labeled(data, annotations), count)


def without(items: Items, names: Iterable[str]) -> Items:
    """Return the images whose names are not among these."""
    dropped = set(names)
    return dataclasses.replace(items, items=tuple(item for item in items if item.name not in dropped))


def overlap(used: Mapping[str, Any], items: Items) -> list[str]:
    """Return images that calibration or a search has used: a figure on them is not held-out."""
    seen = set(used.get("sha256", ()))
    return [item.name for item in items if digest(item) in seen] if seen else []


def draws(source: Items, count: int, repeat: int, seed: int, apart: Sequence[Items] = ()) -> list[Items]:
    """Return `repeat` random choices of `count` inputs, none of them also in `apart`.

    As long as the inputs suffice, no two choices share one: choices that do would differ too little.
    """
    if repeat < 1:
        raise UsageError(f"repeat must be at least 1, not {repeat}. Leave repeat= out for one calibration.")
    used = {"sha256": [digest(item) for items in apart for item in items]}
    pool = without(source, overlap(used, source))
    if count >= len(pool):
        raise DataError(
            f"{source.source}: to draw {count} inputs there must be more than the {len(pool)} that are left. "
            "Calibrate on fewer, or on a larger folder."
        )
    generator, chosen = torch.Generator().manual_seed(seed), list[Items]()
    while len(chosen) < repeat:
        order = [pool[i] for i in torch.randperm(len(pool), generator=generator).tolist()]
        parts = (order[i * count : (i + 1) * count] for i in range(len(order) // count))
        chosen += [dataclasses.replace(pool, items=tuple(part)) for part in parts]
    return chosen[:repeat]


def calibration_images(loaded: LoadedModel, data: Mapping[str, Any], *, whole: bool = True) -> Items:
    """Return the inputs that a run was calibrated on, by name; `whole` refuses if some are gone or have other contents."""
    everything, names = choose(data["source"], None, loaded.task), set(data["names"])
    chosen = dataclasses.replace(everything, items=tuple(i for i in everything if i.name in names))
    if whole and len(overlap(data, chosen)) != len(names):
        raise DataError(f"{data['source']}: the images of the calibration are not all there. Convert again.")
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
    return checksum([rows, None if items.truth is None else items.truth.record])
