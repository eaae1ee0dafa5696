"""Networks that are built without memory for their parameters, which stay in their files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from onespike.adapters.base import ADAPTERS, LoadedModel, Source, require
from onespike.adapters.checkpoints import REAL, refuse_differences
from onespike.errors import LoadError
from onespike.runtime.offload import Stored, built_without_weights, stored_in


def files_of(name: str, source: Source) -> list[Path]:
    """The safetensors files that hold a network's weights; none where they are not at hand as such."""
    if source.file is not None:
        return [source.file] if source.file.suffix == ".safetensors" and source.file.is_file() else []
    return sorted(Path(name).glob("*.safetensors")) if source.pretrained and Path(name).is_dir() else []


def load_from_disk(kind: str, name: str, source: Source, files: Sequence[Path]) -> LoadedModel:
    """The network, and where in these files its parameters and buffers are."""
    accelerate = require("accelerate", "accelerate", f"{kind}:{name} in blocks")
    with accelerate.init_empty_weights(include_buffers=False):
        loaded = ADAPTERS[kind].load(name, Source(random=True, attention=source.attention))
    model: Any = loaded.model
    if hasattr(model, "tie_weights"):  # parameters that are one, which building them empty has parted
        model.tie_weights()
    built_without_weights(model, _matching(f"{files[0].parent}", model, stored_in(files)))
    return dataclasses.replace(loaded, weights=source.describe())


def _matching(place: str, model: nn.Module, stored: dict[str, Stored]) -> dict[str, Stored]:
    """What the network has of these tensors, if all of it is there, in its shape and of a type that it can take."""
    wanted = model.state_dict()
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in stored:
            first.setdefault(id(parameter), name)
    tied = {n: first.get(id(p), n) for n, p in model.named_parameters(remove_duplicate=False)}
    missing = [name for name in wanted if tied.get(name, name) not in stored]
    tensors = {name: stored[tied.get(name, name)] for name in wanted if name not in missing}
    reshaped = [(n, t.shape, wanted[n].shape) for n, t in tensors.items() if t.shape != wanted[n].shape]
    try:
        refuse_differences(place, model, missing, [], reshaped)
    except LoadError as error:
        raise LoadError(
            f"{error} Names that a library translates are read into memory only: without --device-map blocks."
        ) from error
    for name, tensor in tensors.items():
        if wanted[name].dtype in REAL and tensor.dtype not in REAL:
            raise LoadError(
                f"{place}: the tensor {name} is of type {tensor.dtype}, and the network needs {wanted[name].dtype}. "
                "Save the weights as floating-point numbers."
            )
    return tensors
