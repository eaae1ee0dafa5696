"""Sources of networks: `ADAPTER:NAME` → a model, its image transform and what is known about both."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from onespike.errors import LoadError, UsageError, unknown
from onespike.tasks import Classification, Items, Task, batches

if TYPE_CHECKING:
    from PIL.Image import Image

    Transform = Callable[[Image], Tensor]

ATTENTIONS = ("sdpa", "eager")


@dataclass(frozen=True)
class LoadedModel:
    """A network in evaluation mode, with everything needed to feed and describe it.

    Attributes:
        model: the network.
        spec: the user's request, `ADAPTER:NAME`.
        transform: an RGB image → the network's input, without the batch dimension.
        preprocessing: the transform in one readable line.
        weights: `pretrained`, `bundled`, `own` (of the user's code), `random`, or the name of the file.
        attention: `sdpa` (fused) or `eager`; None for a network without attention.
        class_names: one name per class, if known.
        class_ids: one WordNet id per class, if known.
        published_top1: the accuracy stated by the publisher of the weights, in percent.
        save_configuration: writes what is needed to rebuild the network (without weights) into a folder, for networks
            that their name does not define.
        task: how inputs are read, what the output means and how it is scored.
        collate: makes the network's input of several images' tensors; they are stacked if it is None.
        backbone: globs of the sites in the backbone, for networks that have more than one.
        replaced: the library's own mean and deviation, where the user gave others.
        length: tokens that the network is fed with at once; None for one that does not read text.
        of_length: the same network, fed with another number of tokens.
        size: the shorter side that images are resized to and the crop, where the user gave them.
        doubt: how the preprocessing of published weights differs, where a file of weights does not say which it needs.
    """

    model: nn.Module
    spec: str
    transform: Transform
    preprocessing: str
    weights: str
    attention: str | None
    class_names: tuple[str, ...] | None
    published_top1: float | None = None
    save_configuration: Callable[[Path], None] | None = None
    task: Task = field(default_factory=Classification)
    collate: Callable[[list[Tensor]], Any] | None = None
    backbone: tuple[str, ...] = ()
    replaced: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    class_ids: tuple[str, ...] | None = None
    length: int | None = None
    of_length: Callable[[int], LoadedModel] | None = None
    size: tuple[int, int] | None = None
    doubt: str = ""

    def with_length(self, length: int) -> LoadedModel:
        """Return the same network for this many tokens per input."""
        if self.of_length is None:
            raise UsageError(f"{self.spec} reads no text, and --length is for text. Leave it out.")
        return self.of_length(length)

    def batches(
        self, items: Items, batch_size: int, part: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[Any, Tensor | None]]:
        """Return batches of (inputs, labels) as the network takes them; with several processes, this one's part."""
        load = self.task.load
        return batches(items, self.transform, batch_size, part=part, collate=self.collate, load=load)


@dataclass(frozen=True)
class Source:
    """The weights to use, at most one of the three, and the form of attention."""

    file: Path | None = None
    pretrained: bool = False
    random: bool = False
    attention: str | None = None

    def describe(self) -> str:
        return self.file.name if self.file else "random" if self.random else "pretrained"


@dataclass(frozen=True)
class Adapter:
    """One source of networks.

    Attributes:
        load: makes the network of a name.
        names: which names there are; none if they are countless.
        has_weights: whether a name stands for its weights, too, so that none need be given.
    """

    load: Callable[[str, Source], LoadedModel]
    names: Callable[[], Sequence[str]]
    has_weights: Callable[[str], bool]


ADAPTERS: dict[str, Adapter] = {}

Load = Callable[[str, Source], LoadedModel]


def adapter(
    name: str,
    *,
    names: Callable[[], Sequence[str]] = tuple,
    has_weights: Callable[[str], bool] = lambda name: False,
) -> Callable[[Load], Load]:
    """Register the function that loads `NAME:…`; refuse a name that is taken."""

    def register(load: Load) -> Load:
        if name in ADAPTERS:
            raise UsageError(f"an adapter named {name!r} is registered already. Choose another name.")
        ADAPTERS[name] = Adapter(load, names, has_weights)
        return load

    return register


def load_model(
    spec: str,
    *,
    weights: str | Path | None = None,
    pretrained: bool = False,
    random_weights: bool = False,
    attention: str | None = None,
    on_disk: bool = False,
) -> LoadedModel:
    """Load the network that `spec` names, in evaluation mode.

    Args:
        spec: `timm:NAME`, `torchvision:NAME`, `transformers:ID-OR-DIR`, `detectron2:CONFIG`, `bundled:NAME` or
            `python:FILE.py:FACTORY`, which runs that file.
        weights: a local checkpoint (`.safetensors`, `.pth`, `.pt`, `.bin`); no code in it is ever run.
        pretrained: take the weights that the library publishes; not needed for a folder that holds them.
        random_weights: leave the network as it is initialized.
        attention: `sdpa` or `eager`; the library's own choice if not given.
        on_disk: leave its parameters where they are, if that is in safetensors files under the network's own names.
    """
    kind, colon, name = spec.partition(":")
    if not colon or not name:
        forms = ", ".join(f"{a}:NAME" for a in sorted(ADAPTERS))
        raise UsageError(f"{spec!r} does not name a network. Write one of: {forms}.")
    if kind not in ADAPTERS:
        raise unknown("adapter", kind, ADAPTERS)
    if sum((weights is not None, pretrained, random_weights)) > 1:
        raise UsageError(f"{spec}: more than one kind of weights. Give one of {OPTIONS}.")
    if not (weights or pretrained or random_weights) and not (pretrained := ADAPTERS[kind].has_weights(name)):
        raise UsageError(f"{spec}: no weights given. Give one of {OPTIONS}.")
    if attention is not None and attention not in ATTENTIONS:
        raise unknown("attention", attention, ATTENTIONS)
    file = None if weights is None else Path(weights)
    source = Source(file, pretrained, random_weights, attention)
    if on_disk:
        from onespike.adapters.on_disk import files_of, load_from_disk

        files = files_of(name, source)
        if files:
            loaded = load_from_disk(kind, name, source, files)
            loaded.model.eval()
            return loaded
    loaded = ADAPTERS[kind].load(name, source)
    loaded.model.eval()
    return loaded


OPTIONS = "--weights FILE, --pretrained (the published weights) or --random-weights (untrained)"


def require(package: str, extra: str, wanted_by: str) -> ModuleType:
    """Import an optional package, or raise an error that names its extra."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != package.partition(".")[0]:
            reason = f"{package} cannot be imported ({first_line(error)})"
        else:
            reason = f"it needs {package}"
        raise LoadError(f"{wanted_by}: {reason}. Install it with: pip install 'onespike[{extra}]'") from error


def unknown_model(library: str, name: str, known: Sequence[str], listing: str) -> UsageError:
    """Return the error for a name among hundreds: it shows only the nearest ones and where to find all."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    return UsageError(f"unknown {library} model {name!r}.{hint} All {len(known)} names: {listing}.")


def cannot_download(spec: str, error: Exception) -> LoadError:
    return LoadError(
        f"{spec}: the published weights cannot be fetched ({first_line(error)}). "
        "Check the network connection, or give a local checkpoint with --weights FILE."
    )


def first_line(error: Exception) -> str:
    r"""Return an exception's first line without its full stop, for use inside a sentence.

    >>> first_line(ValueError("No such thing.\nDetails."))
    'No such thing'
    """
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(". ") if lines else type(error).__name__


def imagenet_synsets(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the WordNet ids of ImageNet-1K's classes as timm lists them; None for other classes, or without timm."""
    if (
        names is None
        or len(names) != 1000
        or not (names[0].startswith("tench") and names[-1].startswith("toilet"))
    ):
        return None
    try:
        info = importlib.import_module("timm.data").ImageNetInfo()
    except ImportError:
        return None
    return tuple(info.label_names())


def describe_normalization(mean: Sequence[float], std: Sequence[float]) -> str:
    """Return mean and standard deviation as readable text.

    >>> describe_normalization((0.5, 0.5, 0.5), (0.229, 0.224, 0.225))
    'mean 0.5 0.5 0.5, std 0.229 0.224 0.225'
    """
    return f"mean {' '.join(f'{m:g}' for m in mean)}, std {' '.join(f'{s:g}' for s in std)}"
