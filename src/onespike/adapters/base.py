"""Sources of networks: `ADAPTER:NAME` → a model, how its inputs are read, and its task."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from onespike.errors import LoadError, UsageError, first_line, unknown
from onespike.sources import SOURCES, forms
from onespike.tasks import Classification, Detection, Items, Task, batches
from onespike.tasks.inputs import Batches

ALIGNMENT = 64  # bytes at multiples of which torch puts what it allocates
ATTENTIONS = ("sdpa", "eager")
BACKBONES = ("backbone", "model.backbone", "vit", "model.pixel_level_module.encoder")
"""Names that detectors give to the part that a classifier also has."""
Normalization = tuple[tuple[float, ...], tuple[float, ...]]  # a mean and a standard deviation per channel


@dataclass(frozen=True)
class Reading:
    """How a network's inputs are read."""

    # what the task loads, such as an RGB image → input without batch dimension
    transform: Callable[[Any], Any]
    preprocessing: str  # the transform in one readable line
    collate: Callable[[list[Any]], Any] | None = None  # makes a batch of inputs; None stacks them
    length: int | None = None  # tokens that the network is fed with at once, if it reads text
    of_length: Callable[[int], tuple[Reading, Task]] | None = None  # reading and task for another length
    size: tuple[int, int] | None = None  # the user's shorter side of resized images, and crop
    replaced: Normalization | None = None  # the library's own, where the user gave another
    # how published preprocessing differs, where a file of weights does not say which it needs
    doubt: str = ""


@dataclass(frozen=True)
class LoadedModel:
    """A network in evaluation mode, how its inputs are read, and how its outputs are scored."""

    model: nn.Module
    spec: str  # the user's request, `ADAPTER:NAME`
    reading: Reading
    task: Task = field(default_factory=Classification)
    weights: str = "own"  # of the user's code; or `pretrained`, `bundled`, `random`, the name of the file
    attention: str | None = None  # `sdpa` (fused) or `eager`; None for a network without attention
    published_top1: float | None = None  # in percent
    # writes what rebuilds the network (without weights) into a folder, where its name does not define it
    save_configuration: Callable[[Path], None] | None = None

    @property
    def backbone(self) -> tuple[str, ...]:
        """Return globs of the sites in a detector's backbone; none for networks that are nothing else."""
        names = dict(self.model.named_modules()) if isinstance(self.task, Detection) else {}
        return next(((f"{name}[.:]*",) for name in BACKBONES if name in names), ())

    def with_length(self, length: int) -> LoadedModel:
        if self.reading.of_length is None:
            raise UsageError(f"{self.spec} reads no text, and length= is for text. Leave it out.")
        reading, task = self.reading.of_length(length)
        return dataclasses.replace(self, reading=reading, task=task)

    def batches(self, items: Items, batch_size: int, part: tuple[int, int] = (0, 1)) -> Batches:
        """Return batches of (inputs, labels) as the network takes them; with several processes, this one's part."""
        how: Any = {"part": part, "collate": self.reading.collate, "load": self.task.load}
        return batches(items, self.reading.transform, batch_size, **how)


@dataclass(frozen=True)
class Source:
    """What the user asks for: a network, at most one of three kinds of weights, and a form of attention."""

    spec: str
    file: Path | None = None
    pretrained: bool = False
    random: bool = False
    attention: str | None = None

    def describe(self) -> str:
        return self.file.name if self.file else "random" if self.random else "pretrained"


def load_model(
    spec: str,
    *,
    weights: str | Path | None = None,
    pretrained: bool = False,
    random_weights: bool = False,
    attention: str | None = None,
    on_disk: bool = False,
) -> LoadedModel:
    """Load the network that `spec` names, such as `timm:resnet18`, in evaluation mode.

    `weights` is a local checkpoint, in which no code is ever run; `pretrained` takes what the library publishes, and
    is not needed for a folder with weights. `attention` is `sdpa` or `eager`, by default the library's own choice.
    With `on_disk` parameters stay in safetensors files that hold them under the network's own names.
    """
    kind, _, name = spec.partition(":")
    if not name:
        raise UsageError(f"{spec!r} does not name a network. Write {forms()}.")
    if kind not in SOURCES:
        raise unknown("adapter", kind, SOURCES)
    adapter: Any = importlib.import_module(f"onespike.adapters.{kind}")
    if sum((weights is not None, pretrained, random_weights)) > 1:
        raise UsageError(f"{spec}: more than one kind of weights. Give one of {OPTIONS}.")
    if not (weights or pretrained or random_weights):
        pretrained = hasattr(adapter, "has_weights") and adapter.has_weights(name)
        if not pretrained:
            raise UsageError(f"{spec}: no weights given. Give one of {OPTIONS}.")
    if attention is not None and attention not in ATTENTIONS:
        raise unknown("attention", attention, ATTENTIONS)
    source = Source(spec, None if weights is None else Path(weights), pretrained, random_weights, attention)
    from onespike.adapters.checkpoints import files_of, load_from_disk

    if on_disk and (files := files_of(name, source)):
        loaded: LoadedModel = load_from_disk(adapter, name, source, files)
    else:
        loaded = adapter.load(name, source)
        align_(loaded.model)
    loaded.model.eval()
    return loaded


def align_(model: nn.Module) -> None:
    """Copy weights that a mapped file has anywhere: the last bits of a product depend on where its weights lie."""
    for weight in model.parameters():
        plain = type(weight.data) is Tensor and weight.device.type == "cpu"
        if plain and weight.data_ptr() % ALIGNMENT:
            weight.data = weight.data.clone()


OPTIONS = "weights=FILE, pretrained=True (the published weights) or random_weights=True (untrained)"


def cannot_download(spec: str, error: Exception) -> LoadError:
    return LoadError(
        f"{spec}: the published weights cannot be fetched ({first_line(error)}). "
        "Check the network connection, or give a local checkpoint with weights=FILE."
    )


def classifier(names: tuple[str, ...] | None) -> Classification:
    """Return the task of these classes; those of ImageNet-1K have WordNet ids, too, where timm lists them."""
    ids = None
    if names and len(names) == 1000 and names[0].startswith("tench") and names[-1].startswith("toilet"):
        with suppress(ImportError):
            ids = tuple(importlib.import_module("timm.data").ImageNetInfo().label_names())
    return Classification(names, ids)
