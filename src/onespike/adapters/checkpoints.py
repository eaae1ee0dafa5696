"""A file → a state dict → a model, strictly, and without running any code the file may hold."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from onespike.adapters.base import first_line, require
from onespike.errors import LoadError

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
WRAPPERS = ("state_dict", "model_state_dict", "model", "module")


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, on the CPU.

    A state dict inside a training checkpoint is found under `state_dict`, `model_state_dict`, `model` or
    `module`, and the prefix `module.` that data-parallel training adds is taken off.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        kinds = ", ".join(SUFFIXES)
        raise LoadError(f"{path}: checkpoints of this kind cannot be read. Give a file that ends in {kinds}.")
    if not path.is_file():
        raise LoadError(f"{path}: no such checkpoint file. Check the path given to --weights.")
    contents = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    while isinstance(contents, Mapping):
        inner = next((contents[w] for w in WRAPPERS if isinstance(contents.get(w), Mapping)), None)
        if inner is None:
            break
        contents = inner
    if not (
        isinstance(contents, Mapping)
        and contents
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in contents.items())
    ):
        raise LoadError(
            f"{path}: this file holds no state dict. Save one with torch.save(model.state_dict(), FILE)."
        )
    tensors = dict(contents)
    while all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return tensors


def load_checkpoint_(model: nn.Module, path: Path) -> None:
    """Copy a checkpoint into the model; every name and shape must agree. fp16 weights become the model's type."""
    tensors = read_checkpoint(path)
    wanted = model.state_dict()
    missing = [k for k in wanted if k not in tensors]
    unexpected = [k for k in tensors if k not in wanted]
    mismatched = [
        f"{k} ({_shape(tensors[k])} instead of {_shape(wanted[k])})"
        for k in wanted
        if k in tensors and tensors[k].shape != wanted[k].shape
    ]
    if missing or unexpected or mismatched:
        kinds = (("missing", missing), ("unexpected", unexpected), ("of another shape", mismatched))
        parts = [f"{len(keys)} {kind}, first {keys[0]}" for kind, keys in kinds if keys]
        raise LoadError(
            f"{path}: the checkpoint is of another architecture than {type(model).__name__}, which has {len(wanted)} "
            f"tensors: {'; '.join(parts)}. Name the network that the weights were trained for."
        )
    model.load_state_dict(tensors)


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "scalar"


def _read_safetensors(path: Path) -> object:
    require("safetensors", "cli", str(path))
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise _broken(path, error) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _read_torch(path: Path) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # A whole zip archive that the restricted unpickler refuses names something other than tensors; a file that
        # is no zip is an old-style pickle, of which the same message means the same.
        if (
            "Unsupported global" in str(error)
            or "Unsupported class" in str(error)
            or "Unsupported operand" in str(error)
        ):
            raise LoadError(
                f"{path}: this pickle holds code, which is never run. Convert the file, where you trust it, to "
                "safetensors with safetensors.torch.save_file(state_dict, FILE)."
            ) from error
        raise _broken(path, error) from error
    except (
        RuntimeError,
        EOFError,
        ValueError,
        KeyError,
        AttributeError,
        IndexError,
        zipfile.BadZipFile,
    ) as error:
        raise _broken(path, error) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _broken(path: Path, error: Exception) -> LoadError:
    return LoadError(
        f"{path}: the file is damaged or cut short ({first_line(error)}). Fetch or copy it again."
    )


def _unreadable(path: Path, error: OSError) -> LoadError:
    return LoadError(f"{path}: the file cannot be opened ({error.strerror or error}). Check its permissions.")
