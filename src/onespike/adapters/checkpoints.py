"""A file → a state dict → a model, strictly, running no code; or parameters that stay in their files."""

import dataclasses
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onespike.adapters.base import LoadedModel, Source, cannot_download
from onespike.errors import LoadError, first_line, require
from onespike.runtime.offload import TENSORS, stored_in

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types that hold weights directly; numbers of other types need a scale or a code from elsewhere."""


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name, on the CPU: of a state dict, or of one in a training checkpoint."""
    if path.suffix not in SUFFIXES:
        kinds = ", ".join(SUFFIXES)
        raise LoadError(f"{path}: checkpoints of this kind cannot be read. Give a file that ends in {kinds}.")
    if not path.is_file():
        raise LoadError(f"{path}: no such checkpoint file. Check the path given to weights=.")
    try:
        contents = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    except LoadError:
        raise
    except OSError as error:
        reason = error.strerror or error
        raise LoadError(f"{path}: the file cannot be opened ({reason}). Check its permissions.") from error
    except Exception as error:  # torch, its unpickler, safetensors and zip have separate exception families
        raise LoadError(
            f"{path}: the file is damaged or cut short ({first_line(error)}). Fetch or copy it again."
        ) from error
    tensors = dict(contents) if isinstance(contents, Mapping) else {}
    while inner := next((tensors[w] for w in WRAPPERS if isinstance(tensors.get(w), Mapping)), None):
        tensors = dict(inner)
    if not tensors or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in tensors.items()):
        raise LoadError(f"{path}: no state dict in it. Save one with torch.save(model.state_dict(), FILE).")
    while all(name.startswith("module.") for name in tensors):  # a prefix of data-parallel training
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return tensors


def load_checkpoint_(model: nn.Module, path: Path, ignored: Sequence[str] = ()) -> None:
    """Copy a checkpoint into the model; names and shapes must agree, but for names with an `ignored` word."""
    tensors, wanted = read_checkpoint(path), model.state_dict()
    tensors = {k: v for k, v in tensors.items() if k in wanted or not any(word in k for word in ignored)}
    missing = [k for k in wanted if k not in tensors]
    unexpected = [k for k in tensors if k not in wanted]
    shapes = [(k, v.shape, wanted[k].shape) for k, v in tensors.items() if k in wanted]
    refuse_differences(str(path), model, missing, unexpected, [s for s in shapes if s[1] != s[2]])
    refuse_types(str(path), tensors.items(), wanted)
    model.load_state_dict(tensors)


def refuse_types(place: str, tensors: Iterable[tuple[str, Tensor]], wanted: Mapping[str, Tensor]) -> None:
    """Raise an error if copying a tensor into the model's tensor of that name would change its values."""
    for name, tensor in ((name, tensor) for name, tensor in tensors if name in wanted):
        target = wanted[name].dtype
        plain = tensor.layout is torch.strided and not tensor.is_meta
        kind = "meta" if tensor.is_meta else tensor.dtype if plain else tensor.layout
        if not plain or (target in REAL and kind not in REAL):
            raise _other_type(place, name, kind, target)
        if tensor.dtype == target:
            continue
        cast = tensor.to(target)
        lost = cast.isinf() & tensor.isfinite() if target in REAL else cast.to(tensor.dtype) != tensor
        if bool(lost.any()):
            raise LoadError(
                f"{place}: the tensor {name} holds {tensor[lost][0].item():g}, which {str(target).removeprefix('torch.')} "
                "does not. Check the weights, or scale them down."
            )


def _other_type(place: str, name: str, kind: object, target: object) -> LoadError:
    kind, target = (str(each).removeprefix("torch.") for each in (kind, target))
    return LoadError(
        f"{place}: the tensor {name} is of type {kind}, and the network needs {target}. "
        "Save the weights as floating-point numbers, with the scales of quantized ones applied."
    )


def refuse_differences(
    place: str,
    model: nn.Module,
    missing: Sequence[str],
    unexpected: Sequence[str],
    mismatched: Sequence[tuple[str, Sequence[int], Sequence[int]]],
) -> None:
    """Raise an error if a checkpoint and a model differ in names or in shapes (given as name, checkpoint's, model's)."""
    sizes = ((name, ["×".join(map(str, shape)) or "scalar" for shape in both]) for name, *both in mismatched)
    shapes = [f"{name} ({one} instead of {other})" for name, (one, other) in sizes]
    kinds = (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
    parts = [f"{len(keys)} {kind}, first {keys[0]}" for kind, keys in kinds if keys]
    if parts:
        raise LoadError(
            f"{place}: the checkpoint is of another architecture than {type(model).__name__}, which has "
            f"{len(model.state_dict())} tensors: {'; '.join(parts)}. Name the network that the weights were trained for."
        )


def each_tensor(path: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (the file cannot be iterated over itself)
            yield name, file.get_tensor(name)


def _read_safetensors(path: Path) -> object:
    require("safetensors", "cli", str(path))
    from safetensors import safe_open

    tensors = dict(each_tensor(path))
    with safe_open(path, framework="pt") as file:
        tied = file.metadata() or {}  # names of tensors that are stored once
    return {name: tensors[other] for name, other in tied.items() if other in tensors} | tensors


def _read_torch(path: Path) -> object:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            # torch writes checksums, unless they are switched off, but reads none
            damaged = archive.testzip() if any(part.CRC for part in archive.infolist()) else None
        if damaged is not None:
            raise ValueError(f"its part {damaged} has another checksum")
    try:
        with warnings.catch_warnings():  # about pickles of a protocol that torch does not write
            warnings.simplefilter("ignore", UserWarning)
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # the same for code and for a name that is cut short
        raise LoadError(
            f"{path}: this pickle holds code, which is never run, or is damaged. Fetch or copy it again, or convert it, "
            "where you trust it, to safetensors with safetensors.torch.save_file(state_dict, FILE)."
        ) from error


def files_of(name: str, source: Source) -> list[Path]:
    """The safetensors files that hold a network's weights; none where they are not at hand as such."""
    if source.file is not None:
        return [source.file] if source.file.suffix == ".safetensors" and source.file.is_file() else []
    return sorted(Path(name).glob("*.safetensors")) if source.pretrained else []


def load_from_disk(adapter: Any, name: str, source: Source, files: Sequence[Path]) -> LoadedModel:
    """The network, and where in these files its parameters and buffers are, if all are there and can be taken."""
    accelerate = require("accelerate", "accelerate", f"{source.spec} in blocks")
    with accelerate.init_empty_weights(include_buffers=False):
        empty = dataclasses.replace(source, file=None, pretrained=False, random=True)
        loaded: LoadedModel = adapter.load(name, empty)
    model: Any = loaded.model
    if hasattr(model, "tie_weights"):  # parameters that are one, which building them empty has parted
        model.tie_weights()
    place, stored, wanted = f"{files[0].parent}", stored_in(files), model.state_dict()
    every = dict(model.named_parameters(remove_duplicate=False))
    first = {id(p): name for name, p in reversed(every.items()) if name in stored}
    tied = {name: first.get(id(p), name) for name, p in every.items()}
    tensors = {name: stored[other] for name in wanted if (other := tied.get(name, name)) in stored}
    reshaped = [(n, t.shape, wanted[n].shape) for n, t in tensors.items() if t.shape != wanted[n].shape]
    try:
        refuse_differences(place, model, [name for name in wanted if name not in tensors], [], reshaped)
    except LoadError as error:
        raise LoadError(
            f"{error} Names that a library translates are read into memory only: without device_map=blocks."
        ) from error
    for name, tensor in tensors.items():
        if wanted[name].dtype in REAL and tensor.dtype not in REAL:
            raise _other_type(place, name, tensor.dtype, wanted[name].dtype)
    model.__dict__[TENSORS] = tensors
    return dataclasses.replace(loaded, weights=source.describe())


def built(source: Source, build: Callable[[], nn.Module]) -> nn.Module:
    """Return what a library builds, with the weights of a file; what goes wrong with published ones becomes one error."""
    try:
        model = build()
    except Exception as error:  # hub and HTTP clients have separate exception families
        if not source.pretrained:
            raise
        raise cannot_download(source.spec, error) from error
    if source.file:
        load_checkpoint_(model, source.file)
    return model
