"""A network that Python made, not an adapter: its conversion as a folder, and back into a network of the same class."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from onespike.adapters import LoadedModel, Reading, load_checkpoint_
from onespike.adapters.base import require
from onespike.adapters.user_file import OWN
from onespike.calibration.thresholds import Thresholds
from onespike.conversion import network
from onespike.conversion.network import Conversion, Network, conversion_of, is_rounded, revert_
from onespike.errors import LoadError, UsageError
from onespike.recipe import Recipe
from onespike.runs import storage


def convert_(model: Network, thresholds: Thresholds, recipe: Recipe | None = None) -> Network:
    return _keepable(network.convert_(model, thresholds, recipe))


def convert(
    model: Network, thresholds: Thresholds, recipe: Recipe | None = None, *, share_weights: bool = False
) -> Network:
    return _keepable(network.convert(model, thresholds, recipe, share_weights=share_weights))


convert_.__doc__, convert.__doc__ = network.convert_.__doc__, network.convert.__doc__


def _keepable(snn: Network) -> Network:
    """Give a converted network the method `save_pretrained`, in place of one that knows the original only."""
    snn.__dict__["save_pretrained"] = partial(save_network, snn)
    return snn


def save_network(snn: nn.Module, folder: Path | str) -> Path:
    """Write a converted network of any class into a new folder; `onespike.from_pretrained(folder, model)` reads it."""
    require("safetensors", "cli", "save")
    ann, conversion = _original(snn)
    spec = f"{OWN}{type(snn).__module__}.{type(snn).__qualname__}"
    storage.save(
        Path(folder),
        model=ann,
        network={"spec": spec, "weights": "own", "attention": None, "preprocessing": ""},
        recipe=conversion.recipe,
        thresholds=conversion.thresholds,
        data={"source": "Python", "names": [], "sha256": []},
    )
    return Path(folder)


def _original(snn: nn.Module) -> tuple[nn.Module, Conversion]:
    """Return the network before its conversion, which must give all of this network again."""
    conversion = conversion_of(snn)
    if is_rounded(snn):
        raise UsageError(
            "save: this network was made for integer inference, and its weights are rounded. Save the converted network "
            "that it was made from; after loading, onespike.optimize makes the same integers of it."
        )
    if any(tensor.is_meta for tensor in snn.state_dict().values()):
        raise UsageError("save: the weights of this network are not in memory. Save its pair instead.")
    ann = revert_(copy.deepcopy(snn))
    again, wanted = (
        convert(ann, conversion.thresholds, conversion.recipe, share_weights=True).state_dict(),
        snn.state_dict(),
    )
    changed = [name for name, tensor in wanted.items() if not torch.equal(again[name], tensor)]
    if changed:
        raise UsageError(
            f"save: {len(changed)} tensors changed after the conversion, {changed[0]} the first, and a folder holds the "
            "original and how it was converted. Keep this network with torch.save(snn.state_dict(), FILE)."
        )
    return ann, conversion


def filled(run: storage.Run, model: nn.Module) -> LoadedModel:
    """Copy the weights of a run into a network that Python made."""
    load_checkpoint_(model, run.weights_file)
    return LoadedModel(model, run.network["spec"], Reading(no_transform, ""))


def own_class(run: storage.Run) -> str | None:
    """Return the name of the class of a network that Python made; None of one that an adapter loads."""
    spec: str = run.network["spec"]
    return spec.removeprefix(OWN) if spec.startswith(OWN) else None


def refuse_missing(run: storage.Run) -> None:
    """A folder names a class that Python made, or the file that made it: neither is run without the user's word."""
    if name := own_class(run):
        raise LoadError(
            f"{run.folder}: this run holds the weights of a {name} without its code. Give one: "
            "onespike.from_pretrained(FOLDER, model), or --model python:FILE.py:FACTORY, which runs that file."
        )


def no_transform(image: Any) -> NoReturn:
    raise UsageError("a network that was saved in Python states no preprocessing. Give it batches.")
