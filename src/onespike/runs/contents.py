"""Digests of what a measurement was made on: a name may later mean other weights or images."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onespike.runtime.atomic import sha256
from onespike.tasks import Item, Items


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
    return _of([rows, None if items.truth is None else items.truth.record])


def _of(record: Any) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
