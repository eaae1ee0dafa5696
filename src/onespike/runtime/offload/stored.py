"""Tensors that stay in their safetensors files until they are needed, and the units in which they come into memory."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from onespike.errors import LoadError

TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "BOOL": torch.bool,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in TYPES.items()}


@dataclass(frozen=True)
class Stored:
    """One tensor of a file: where its bytes begin, its type and its shape."""

    file: Path
    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> Tensor:
        """The tensor, in memory of its own: a mapped file would stay in memory as a whole."""
        whole = torch.empty(self.shape, dtype=self.dtype)
        data = whole.flatten().view(torch.uint8).numpy().data
        with self.file.open("rb") as file:
            file.seek(self.start)
            if file.readinto(data) != len(data):
                raise _broken(self.file, "it is shorter than its header says")
        return whole


def stored_in(files: Iterable[Path]) -> dict[str, Stored]:
    """The tensors of safetensors files by their names; only the headers are read."""
    tensors: dict[str, Stored] = {}
    for file in files:
        try:
            with file.open("rb") as opened:
                start = 8 + int.from_bytes(opened.read(8), "little")
                size = file.stat().st_size
                header = json.loads(opened.read(start - 8)) if start - 8 < size else None
            if not isinstance(header, dict):
                raise _broken(file, "it has no header")
            header.pop("__metadata__", None)
            for name, facts in header.items():
                if facts["dtype"] not in TYPES:
                    raise LoadError(
                        f"{file}: it holds numbers of type {facts['dtype']}, which are not read block by block. "
                        "Save the weights as floating-point numbers."
                    )
                begin, end = facts["data_offsets"]
                entry = Stored(file, start + begin, TYPES[facts["dtype"]], tuple(facts["shape"]))
                if entry.nbytes != end - begin or start + end > size:
                    raise _broken(file, "it is shorter than its header says")
                tensors[name] = entry
        except (ValueError, KeyError, TypeError) as error:
            raise _broken(file, "its header cannot be read") from error
    return tensors


def _broken(file: Path, reason: str) -> LoadError:
    return LoadError(f"{file}: the file is damaged or cut short ({reason}). Fetch or copy it again.")


def write(path: Path, tensors: Mapping[str, Stored | Tensor], tied: Mapping[str, str] | None = None) -> None:
    """A safetensors file of tensors in memory and on disk, of which one at a time is read.

    `tied` has further names of tensors, in the form of safetensors' `save_model`.
    """
    header, place = dict[str, Any]({"__metadata__": {"format": "pt", **tied}} if tied else {}), 0
    # every tensor begins at a multiple of the size of its numbers
    ordered = sorted(tensors.items(), key=lambda entry: -entry[1].dtype.itemsize)
    for name, tensor in ordered:
        end = place + tensor.nbytes
        facts = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, end]}
        header[name], place = facts, end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            whole = tensor.read() if isinstance(tensor, Stored) else tensor.detach().cpu()
            file.write(whole.contiguous().flatten().view(torch.uint8).numpy().data)


@dataclass(eq=False)
class Unit:
    """Weights that come and go together: those of one module, and of its copy in a converted network.

    While `held`, somebody who takes many forwards through it keeps them.
    """

    name: str
    weights: Mapping[str, tuple[Stored, torch.dtype]]
    repeats: bool
    device: torch.device
    held: bool = False

    def __deepcopy__(self, memo: Any) -> Self:
        return self  # a copy of the network has the same weights

    @property
    def size(self) -> int:
        return sum(math.prod(stored.shape) * dtype.itemsize for stored, dtype in self.weights.values())

    def load(self, modules: Iterable[nn.Module]) -> None:
        """Read the weights once, for these modules."""
        missing = [module for module in modules if any(p.is_meta for p in module.parameters())]
        for path, (stored, dtype) in self.weights.items() if missing else ():
            _place(missing, path, stored.read().to(self.device, dtype))

    def free(self, modules: Iterable[nn.Module]) -> None:
        for path, (stored, dtype) in self.weights.items():
            _place(modules, path, torch.empty(stored.shape, dtype=dtype, device="meta"))


def _place(modules: Iterable[nn.Module], path: str, value: Tensor) -> None:
    owner, _, name = path.rpartition(".")
    for module in modules:
        setattr(module.get_submodule(owner), name, nn.Parameter(value, requires_grad=False))
