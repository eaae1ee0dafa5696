"""Tensors that stay in their safetensors files until they are needed, and are copied from file to file one by one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onespike.errors import LoadError

TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip
NAMES = {kind: name for name, kind in TYPES.items()}


@dataclass(frozen=True)
class Stored:
    """One tensor of a file: where its bytes begin, its type and its shape."""

    file: Path
    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> Tensor:
        """The tensor, in memory of its own: a mapped file would stay in memory as a whole."""
        data = bytearray(self.size)
        with self.file.open("rb") as file:
            file.seek(self.start)
            if file.readinto(data) != self.size:
                raise _broken(self.file, "it is shorter than its header says")
        if not data:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(data, dtype=self.dtype).view(self.shape)


def stored_in(files: Iterable[Path]) -> dict[str, Stored]:
    """The tensors of safetensors files by their names; only the headers are read."""
    found: dict[str, Stored] = {}
    for file in files:
        try:
            with file.open("rb") as opened:
                length = int.from_bytes(opened.read(8), "little")
                header = json.loads(opened.read(length)) if length < file.stat().st_size else None
            if not isinstance(header, dict):
                raise _broken(file, "it has no header")
            for name, facts in header.items():
                if name != "__metadata__":
                    found[name] = _entry(file, 8 + length, facts)
        except (ValueError, KeyError, TypeError) as error:
            raise _broken(file, "its header cannot be read") from error
    return found


def _entry(file: Path, start: int, facts: Any) -> Stored:
    if facts["dtype"] not in TYPES:
        raise LoadError(
            f"{file}: it holds numbers of type {facts['dtype']}, which are not read block by block. "
            "Save the weights as floating-point numbers."
        )
    begin, end = facts["data_offsets"]
    entry = Stored(file, start + begin, TYPES[facts["dtype"]], tuple(facts["shape"]))
    if entry.size != end - begin or start + end > file.stat().st_size:
        raise _broken(file, "it is shorter than its header says")
    return entry


def write(path: Path, tensors: Mapping[str, Stored | Tensor], tied: Mapping[str, str] | None = None) -> None:
    """A safetensors file of tensors in memory and on disk, of which one at a time is in memory.

    `tied` has further names of tensors, in the form of safetensors' `save_model`.
    """
    header, place = dict[str, Any]({"__metadata__": dict(tied)} if tied else {}), 0
    for name, tensor in tensors.items():
        size = tensor.size if isinstance(tensor, Stored) else tensor.numel() * tensor.itemsize
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + size],
        }
        place += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            whole = tensor.read() if isinstance(tensor, Stored) else tensor.detach().cpu()
            file.write(whole.contiguous().flatten().view(torch.uint8).numpy().data)


def _broken(file: Path, reason: str) -> LoadError:
    return LoadError(f"{file}: the file is damaged or cut short ({reason}). Fetch or copy it again.")
