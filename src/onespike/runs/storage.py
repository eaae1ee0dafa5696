"""A run on disk: JSON and safetensors with checksums, complete or absent; nothing is ever unpickled.

A run whose network is one of transformers also serves `AutoModel….from_pretrained(FOLDER)`: `config.json` names onespike
as the quantizer, and the run's file as the one that holds the weights: those of the original, which `quantizer.py`
converts again once transformers has loaded them.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from onespike.calibration.thresholds import Merging, SiteThreshold, Thresholds
from onespike.errors import LoadError
from onespike.neurons import NEURONS
from onespike.presets import DEFAULT
from onespike.recipe import Recipe
from onespike.runtime.atomic import atomic_directory, damage, digests, write_atomically
from onespike.runtime.devices import save_weights
from onespike.runtime.validated import read_sealed, sealed, understood
from onespike.sites import Site

VERSION = 1
RECORD, WEIGHTS, THRESHOLDS = "run.json", "weights.safetensors", "thresholds.safetensors"
CONFIGURATION = "network"
SIDES, OTHERS = ("positive", "negative"), ("center", "offset", "gain", "typical", "change")
REMEDY = "Convert the network again."
METHOD, CONFIG = "onespike", "config.json"
"""The quantizer's name in transformers, and the file that states it."""
TRANSFORM = ("input_size", "interpolation", "crop_pct", "crop_mode", "mean", "std")
"""What timm prepares images by."""


@dataclass
class OnespikeConfig:
    """Converts while transformers loads: `AutoModel….from_pretrained(ID, quantization_config=OnespikeConfig(…))`.

    A folder that holds a converted network needs no inputs, which are unlabeled batches, as for `spike`.
    """

    recipe: str | Recipe = DEFAULT
    inputs: Iterable[Any] | None = None
    quant_method: str = METHOD
    version: int = VERSION

    def to_dict(self) -> dict[str, Any]:
        return {"quant_method": self.quant_method, "version": self.version}

    def __deepcopy__(self, memo: dict[int, Any]) -> OnespikeConfig:
        return self  # transformers copies its configuration, and inputs need not be


@dataclass(frozen=True)
class Network:
    spec: str
    weights: str
    attention: str | None
    weights_file: Literal["weights.safetensors"]
    preprocessing: str = ""
    published_top1: float | None = None
    size: tuple[int, int] | None = None
    normalization: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    length: int | None = None


@dataclass(frozen=True)
class Facts:
    role: str
    levels: tuple[int, ...]
    largest: float
    shape: tuple[int, ...]
    calls: float
    macs: float
    rounding: str | None = None


@dataclass(frozen=True)
class Provenance:
    samples: int
    observer: str = ""
    passes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Data:
    source: str
    names: tuple[str, ...]
    sha256: tuple[str, ...]


@dataclass(frozen=True)
class RunRecord:
    """The schema of a run's record."""

    network: Network
    recipe: dict[str, Any]
    sites: dict[str, Facts]
    uncovered: tuple[tuple[str, str, float], ...]
    folds: dict[str, str]
    provenance: Provenance
    data: Data
    files: dict[str, str]
    merging: Merging | None = None


@dataclass(frozen=True)
class Run:
    """The contents of a run directory, with all checksums compared; an adapter reads its weights."""

    folder: Path
    network: dict[str, Any]
    recipe: Recipe
    thresholds: Thresholds
    data: dict[str, Any]
    files: tuple[str, ...] = ()


def save(
    folder: Path,
    *,
    model: nn.Module,
    network: dict[str, Any],
    recipe: Recipe,
    thresholds: Thresholds,
    data: dict[str, Any],
    configuration: Callable[[Path], None] | None = None,
) -> None:
    """Write a run directory; it appears under its name only when it is complete.

    `network` says how to rebuild it, and `configuration` writes whatever else the adapter needs into a folder.
    """
    from safetensors.torch import save_file

    every = {f"{site}/{n}": getattr(t, n) for site, t in thresholds.items() for n in (*SIDES, *OTHERS)}
    # safetensors takes no memory that two tensors share
    tensors = {name: x.contiguous().clone() for name, x in every.items() if x is not None}
    with atomic_directory(folder) as partial:
        save_file(tensors, partial / THRESHOLDS)
        save_weights(partial / WEIGHTS, model)
        if configuration is not None:
            configuration(partial / CONFIGURATION)
        library = sys.modules.get("transformers")
        if library is not None and isinstance(model, library.PreTrainedModel):
            _write_for_transformers(partial, model, configuration)
        elif "timm" in sys.modules and "architecture" in getattr(model, "pretrained_cfg", {}):
            _write_for_timm(partial, model)
        files, facts = digests(partial), [field.name for field in dataclasses.fields(Facts)]
        record = {
            "version": VERSION,
            "network": {**network, "weights_file": WEIGHTS},
            "recipe": recipe.to_dict(),
            "sites": {
                str(site): {name: fact for name in facts if (fact := getattr(t, name)) is not None}
                for site, t in thresholds.items()
            },
            "uncovered": [[*key, macs] for key, macs in thresholds.uncovered.items()],
            "folds": thresholds.folds,
            "provenance": thresholds.provenance,
            "data": data,
            "files": files,
        }
        if thresholds.merging is not None:
            record["merging"] = dataclasses.asdict(thresholds.merging)
        (partial / RECORD).write_text(sealed(record), encoding="utf-8")
        for name in files:  # safetensors makes its files unreadable for others
            shutil.copymode(partial / RECORD, partial / name)


def _write_for_transformers(folder: Path, network: Any, others: Callable[[Path], None] | None) -> None:
    """Write what transformers reads beside the weights."""
    if others is not None:
        others(folder)  # the tokenizer or image processor, for pipelines
    config = copy.deepcopy(network.config)
    config.dtype = network.dtype
    entries = config.to_diff_dict() | identity(network)
    entries |= {"quantization_config": OnespikeConfig().to_dict(), "transformers_weights": WEIGHTS}
    (folder / CONFIG).write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    if network.can_generate():
        network.generation_config.save_pretrained(folder)


def _write_for_timm(folder: Path, network: Any) -> None:
    """Write what `timm.create_model("local-dir:FOLDER")` builds the network from, if it is as its name and classes say.

    `load` gives that network its weights and spikes. timm does not state other arguments of a network.
    """
    settings = network.pretrained_cfg
    entries = {"architecture": settings["architecture"], "num_classes": network.num_classes}
    with torch.device("meta"):
        plain = sys.modules["timm"].create_model(entries["architecture"], num_classes=network.num_classes)
    shapes = [{name: x.shape for name, x in n.state_dict().items()} for n in (plain, network)]
    if shapes[0] == shapes[1]:
        entries["pretrained_cfg"] = {name: settings.get(name) for name in TRANSFORM}
        (folder / CONFIG).write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")


def identity(network: Any) -> dict[str, Any]:
    """Return what thresholds belong to: the class of a network, and how it computes attention and experts."""
    forms = ("attn_implementation", "experts_implementation")
    stated = {form: getattr(network.config, f"_{form}", None) for form in forms}
    return {"architectures": [type(network).__name__], **stated}


def replace_recipe(folder: Path, recipe: Recipe) -> None:
    """Replace the recipe of a run, for example by one with the λ of a search; keep everything else."""
    write_atomically(folder / RECORD, sealed({**_read_record(folder), "recipe": recipe.to_dict()}))


def load(folder: Path) -> Run:
    """Read a run directory; any damage raises an error that names it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (folder / RECORD).is_file():
        raise LoadError(
            f"{folder}: no run here ({RECORD} is missing). Make one with: onespike convert … --out {folder}"
        )
    record = _read_record(folder)
    for name, expected in record["files"].items():
        if (difference := damage(folder / name, expected)) is not None:
            raise LoadError(f"{folder}: the run is damaged: {name} {difference}. {REMEDY}")
    try:
        tensors = load_file(folder / THRESHOLDS)
    except SafetensorError as error:
        raise LoadError(f"{folder / THRESHOLDS}: the file is damaged ({error}). {REMEDY}") from error
    recipe = Recipe.from_dict(record["recipe"], folder / RECORD, REMEDY)
    with understood(folder / RECORD, REMEDY):
        thresholds = _thresholds(record, tensors)
    return Run(folder, record["network"], recipe, thresholds, record["data"], tuple(record["files"]))


def _read_record(folder: Path) -> dict[str, Any]:
    record = read_sealed(RunRecord, folder / RECORD, REMEDY, version=VERSION) or {}
    neuron = record["recipe"].get("neuron")
    if isinstance(neuron, str) and neuron not in NEURONS:
        raise LoadError(
            f"{folder}: its neuron {neuron!r} is none of onespike's. Import the module that registers it first; on the "
            "command line give the file that does: --model python:FILE.py:FACTORY."
        )
    return record


def _thresholds(record: dict[str, Any], tensors: dict[str, Tensor]) -> Thresholds:
    entries = {}
    for text, facts in record["sites"].items():
        facts = {**facts, "levels": tuple(facts["levels"]), "shape": tuple(facts["shape"])}
        named: dict[str, Any] = {name: tensors[f"{text}/{name}"] for name in SIDES}
        named |= {name: tensors.get(f"{text}/{name}") for name in OTHERS}
        site = Site.parse(text)
        entries[site] = SiteThreshold(site=site, **named, **facts)
    uncovered = {(owner, operation): macs for owner, operation, macs in record["uncovered"]}
    merging = None if "merging" not in record else Merging(**record["merging"])
    return Thresholds(entries, uncovered, record["folds"], record["provenance"], merging)
