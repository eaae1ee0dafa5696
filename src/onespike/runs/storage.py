"""A run on disk: JSON and safetensors with checksums, complete or absent; nothing is ever unpickled."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from onespike.calibration.thresholds import SiteThreshold, Thresholds
from onespike.errors import LoadError
from onespike.neurons import NEURONS
from onespike.recipe import Recipe
from onespike.runtime.atomic import atomic_directory, damage, digests, write_atomically
from onespike.runtime.devices import save_weights
from onespike.runtime.validated import read_version, sealed, understood
from onespike.sites import Site

VERSION = 1
RECORD, WEIGHTS, THRESHOLDS = "run.json", "weights.safetensors", "thresholds.safetensors"
CONFIGURATION = "network"
SIDES, OTHERS = ("positive", "negative"), ("center", "offset", "gain", "typical", "change")
REMEDY = "Convert the network again."


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
    recipe: Recipe
    sites: dict[str, Facts]
    uncovered: tuple[tuple[str, str, float], ...]
    folds: dict[str, str]
    provenance: Provenance
    data: Data
    files: dict[str, str]


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
    beside: Callable[[Path], None] | None = None,
) -> None:
    """Write a run directory; it appears under its name only when it is complete.

    `network` says how to rebuild it, and `configuration` writes whatever else the adapter needs into a folder;
    `beside` writes what a library needs to load the run itself.
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
        if beside is not None:
            beside(partial)
        files = digests(partial)
        record = {
            "version": VERSION,
            "network": {**network, "weights_file": WEIGHTS},
            "recipe": recipe.to_dict(),
            "sites": {str(site): _facts(t) for site, t in thresholds.items()},
            "uncovered": [[*key, macs] for key, macs in thresholds.uncovered.items()],
            "folds": thresholds.folds,
            "provenance": thresholds.provenance,
            "data": data,
            "files": files,
        }
        (partial / RECORD).write_text(sealed(record), encoding="utf-8")
        for name in files:  # safetensors makes its files unreadable for others
            shutil.copymode(partial / RECORD, partial / name)


def replace_recipe(folder: Path, recipe: Recipe) -> None:
    """Replace the recipe of a run, for example by one with the λ of a search; keep everything else."""
    record = _read_record(Path(folder))
    write_atomically(Path(folder) / RECORD, sealed({**record, "recipe": recipe.to_dict()}))


def load(folder: Path) -> Run:
    """Read a run directory; any damage raises an error that names it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(folder)
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
        raise LoadError(
            f"{folder}: the run is damaged: {THRESHOLDS} cannot be read ({error}). {REMEDY}"
        ) from error
    recipe = Recipe.from_dict(record["recipe"], folder / RECORD, REMEDY)
    with understood(folder / RECORD, REMEDY):
        thresholds = _thresholds(record, tensors)
    return Run(folder, record["network"], recipe, thresholds, record["data"], tuple(record["files"]))


def _read_record(folder: Path) -> dict[str, Any]:
    file = folder / RECORD
    plain = read_version(dict[str, Any], file, VERSION, "the run", REMEDY)
    recipe = plain.get("recipe")
    neuron = recipe.get("neuron") if isinstance(recipe, dict) else None
    if isinstance(neuron, str) and neuron not in NEURONS:
        raise LoadError(
            f"{folder}: its neuron {neuron!r} is none of onespike's. Import the module that registers it first; on the "
            "command line give the file that does: --model python:FILE.py:FACTORY."
        )
    return read_version(RunRecord, file, VERSION, "the run", REMEDY)


def _facts(threshold: SiteThreshold) -> dict[str, Any]:
    """Return the facts but a rounding equal to the recipe's."""
    facts = {field.name: getattr(threshold, field.name) for field in dataclasses.fields(Facts)}
    return {name: value for name, value in facts.items() if value is not None}


def _thresholds(record: dict[str, Any], tensors: dict[str, Tensor]) -> Thresholds:
    entries = {}
    for text, facts in record["sites"].items():
        facts = {**facts, "levels": tuple(facts["levels"]), "shape": tuple(facts["shape"])}
        named: dict[str, Any] = {name: tensors[f"{text}/{name}"] for name in SIDES}
        named |= {name: tensors.get(f"{text}/{name}") for name in OTHERS}
        site = Site.parse(text)
        entries[site] = SiteThreshold(site=site, **named, **facts)
    uncovered = {(owner, operation): macs for owner, operation, macs in record["uncovered"]}
    return Thresholds(entries, uncovered, record["folds"], record["provenance"])
