"""A network and its converted copy, side by side: in memory, as a folder, and from a folder or the Hub."""

import copy
import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, wraps
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

import torch
from torch import nn

from onespike.adapters import LoadedModel, Reading, load_checkpoint_, load_model
from onespike.adapters.preprocessing import normalization, renormalized, resized
from onespike.adapters.python import NAMED, OWN
from onespike.calibration.thresholds import Thresholds
from onespike.conversion import network
from onespike.conversion.network import Network, conversion_of, is_rounded, revert_
from onespike.errors import DataError, LoadError, UsageError, first_line, require
from onespike.recipe import Recipe
from onespike.runs import storage
from onespike.runtime.batches import call, count, take, to
from onespike.runtime.devices import check_device, in_blocks, place_
from onespike.runtime.forward import device_of, evaluating
from onespike.runtime.validated import understood
from onespike.tasks import Classification, Item, Items, Numbers, Task, infer
from onespike.tasks.inputs import Batches

P = ParamSpec("P")


@dataclass(frozen=True)
class NetworkPair:
    """A network and its converted copy, with everything needed to feed them."""

    loaded: LoadedModel
    ann: nn.Module
    snn: nn.Module
    recipe: Recipe
    thresholds: Thresholds
    data: dict[str, Any]


def with_recipe(pair: NetworkPair, recipe: Recipe) -> NetworkPair:
    """Return the same network and thresholds, converted by another recipe."""
    snn = convert(pair.ann, pair.thresholds, recipe, share_weights=True)
    return dataclasses.replace(pair, snn=snn, recipe=recipe)


def _keepable(convert: Callable[P, Network]) -> Callable[P, Network]:
    """Give converted networks the method `save_pretrained`, in place of one that knows the original only."""

    @wraps(convert)
    def converted(*args: P.args, **kwargs: P.kwargs) -> Network:
        snn = convert(*args, **kwargs)
        snn.__dict__["save_pretrained"] = partial(save, pair=snn)
        return snn

    return converted


convert_, convert = _keepable(network.convert_), _keepable(network.convert)


def save(folder: Path | str, pair: NetworkPair | nn.Module) -> Path:
    """Write a network and how it was converted into a new folder: JSON and safetensors.

    An adapter can rebuild a pair from its folder; a converted network of any class is given to `load` or
    `from_pretrained` again, with any weights.
    """
    if isinstance(pair, nn.Module):
        require("safetensors", "cli", "save")
        pair = _from_python(_original(pair), pair)
    loaded, reading = pair.loaded, pair.loaded.reading
    storage.save(
        Path(folder),
        model=pair.ann,
        network={
            "spec": loaded.spec,
            "weights": loaded.weights,
            "attention": loaded.attention,
            "preprocessing": reading.preprocessing,
            "published_top1": loaded.published_top1,
            "length": reading.length,
            "size": reading.size,
            "normalization": None if reading.replaced is None else normalization(reading.transform),
        },
        recipe=pair.recipe,
        thresholds=pair.thresholds,
        data=pair.data,
        configuration=loaded.save_configuration,
    )
    return Path(folder)


def _from_python(
    model: nn.Module, snn: nn.Module, kind: Callable[..., LoadedModel] = LoadedModel, preprocessing: str = ""
) -> NetworkPair:
    """Return the pair of two networks that no adapter has loaded."""
    conversion, spec = conversion_of(snn), f"{OWN}{type(snn).__module__}.{type(snn).__qualname__}"
    loaded = kind(model, spec, Reading(no_transform, preprocessing))
    data = {"source": "Python", "names": [], "sha256": []}
    return NetworkPair(loaded, model, snn, conversion.recipe, conversion.thresholds, data)


def _original(snn: nn.Module) -> nn.Module:
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
    again = convert(ann, conversion.thresholds, conversion.recipe, share_weights=True).state_dict()
    changed = [name for name, tensor in snn.state_dict().items() if not torch.equal(again[name], tensor)]
    if changed:
        raise UsageError(
            f"save: {len(changed)} tensors changed after the conversion, {changed[0]} the first, and a folder holds the "
            "original and how it was converted. Keep this network with torch.save(snn.state_dict(), FILE)."
        )
    return ann


def load(
    folder: Path | str,
    model: nn.Module | str | None = None,
    *,
    device: str = "cpu",
    device_map: str | None = None,
) -> NetworkPair:
    """Read what `save`, `save_pretrained` or `onespike convert` wrote; the logits are the same to the bit.

    Nothing in it is unpickled. A folder that a converted network was saved into from Python holds its weights and not
    its code: give a `model` of the same class, which receives the weights, or its name: `python:FILE.py:FACTORY`.
    """
    check_device(device)
    run, model = storage.load(Path(folder)), NAMED.get() if model is None else model
    with understood(Path(folder), storage.REMEDY):
        if model is None and (name := class_of(run)):
            raise LoadError(
                f"{run.folder}: this run holds the weights of a {name} without its code. Give one: "
                "onespike.from_pretrained(FOLDER, model), or --model python:FILE.py:FACTORY, which runs that file."
            )
        if isinstance(model, nn.Module):
            load_checkpoint_(model, run.folder / storage.WEIGHTS)
            loaded = LoadedModel(model, run.network["spec"], Reading(no_transform, ""))
        else:
            loaded = _load_network(run, model or run.network["spec"], on_disk=in_blocks(device_map))
        ann = place_(loaded.model, device, device_map)
        snn = convert(ann, run.thresholds, run.recipe, share_weights=True)
    return NetworkPair(loaded, ann, snn, run.recipe, run.thresholds, run.data)


def class_of(run: storage.Run) -> str | None:
    """Return the class of a network that Python made, whose code a run does not hold; None if an adapter loads it."""
    spec: str = run.network["spec"]
    return spec.removeprefix(OWN) if spec.startswith(OWN) else None


def _load_network(run: storage.Run, spec: str, on_disk: bool = False) -> LoadedModel:
    attention, weights = run.network["attention"], run.folder / storage.WEIGHTS
    configuration = run.folder / storage.CONFIGURATION
    if spec == run.network["spec"] and configuration.is_dir():
        spec = f"{spec.partition(':')[0]}:{configuration}"
    if on_disk:
        loaded = load_model(spec, weights=weights, attention=attention, on_disk=True)
    else:  # under the names that the network has in memory
        loaded = load_model(spec, random_weights=True, attention=attention)
        load_checkpoint_(loaded.model, weights)
    if size := run.network.get("size"):
        loaded = resized(loaded, *size)
    if replaced := run.network.get("normalization"):
        loaded = renormalized(loaded, *replaced)
    if length := run.network.get("length"):
        loaded = loaded.with_length(length)
    named = run.network["spec"] if configuration.is_dir() else spec
    published = run.network.get("published_top1")
    return dataclasses.replace(loaded, spec=named, weights=run.network["weights"], published_top1=published)


def from_pretrained(
    name: Path | str, model: nn.Module | str | None = None, *, revision: str | None = None
) -> NetworkPair:
    """Load like `load` from a folder, or from a repository `OWNER/NAME` on the Hugging Face Hub."""
    return load(name if Path(name).is_dir() else fetched(str(name), revision), model)


def fetched(name: str, revision: str | None) -> Path:
    """Return the folder of a repository `OWNER/NAME`, with all its files."""
    hub = require("huggingface_hub", "transformers", f"from_pretrained {name}")
    try:
        return Path(hub.snapshot_download(name, revision=revision))
    except Exception as error:  # any exception of a hub client: offline, no such repository, no permission
        raise LoadError(
            f"{name}: neither a folder nor a repository that can be fetched ({first_line(error)}). "
            "Check the name and the network connection."
        ) from error


def no_transform(image: Any) -> NoReturn:
    raise UsageError("a network that was saved in Python states no preprocessing. Give it batches.")


@dataclass(frozen=True)
class InMemory(LoadedModel):
    """A network and batches in memory; an item's content is its batch and its row there."""

    held: tuple[Any, ...] = ()

    def batches(self, items: Items, batch_size: int, part: tuple[int, int] = (0, 1)) -> Batches:
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
    """Return both networks as a pair, and the loader's (inputs, labels) as its items: what every command takes."""
    held, items = list[Any](), list[Item]()
    for number, (inputs, labels) in enumerate(loader):
        held.append(inputs)
        for row in range(count(inputs)):
            label = None if labels is None else int(labels[row])
            name = f"input {len(items)}"
            items.append(Item(name, label, Path(name), row=len(items), content=(number, row)))
    if not items:
        raise DataError("the loader gives no inputs. Give at least one batch of (inputs, labels).")
    if task is None:
        with evaluating(model):
            output = call(model, to(take(held[0], slice(0, 2)), device_of(model)))
        if isinstance(infer(output), Numbers):
            raise UsageError("the network's output is not scores of classes. Give its task, a tasks.Task.")
    kind = partial(InMemory, task=task or Classification(), held=tuple(held))
    return _from_python(model, snn, kind, "as the loader gives it"), Items("Python", tuple(items))
