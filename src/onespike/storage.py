"""A run on disk: JSON and safetensors with checksums, whole or not there at all; nothing is ever unpickled."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onespike.calibrate import SiteThreshold, Thresholds
from onespike.errors import LoadError, OnespikeError
from onespike.files import atomic_directory, sha256
from onespike.recipe import Recipe

VERSION = 1
RECORD, WEIGHTS, THRESHOLDS = "run.json", "weights.safetensors", "thresholds.safetensors"
CONFIGURATION = "network"


@dataclass(frozen=True)
class Run:
    """What a run directory says; the weights themselves are read by `weights_file` and an adapter."""

    folder: Path
    network: dict[str, Any]
    recipe: Recipe
    thresholds: Thresholds
    data: dict[str, Any]

    @property
    def weights_file(self) -> Path:
        """The checkpoint of this run, its checksum already compared."""
        return _checked(self.folder, self.network["weights_file"], self.network["weights_sha256"])


def save(
    folder: Path,
    *,
    model: nn.Module,
    network: dict[str, Any],
    recipe: Recipe,
    thresholds: Thresholds,
    data: dict[str, Any],
    reference_weights: Path | None = None,
    configuration: Callable[[Path], None] | None = None,
) -> None:
    """Write a run directory; it appears under its name only when it is complete.

    Args:
        folder: the new directory.
        model: the original network, whose weights are stored.
        network: how to build it again: `spec`, `attention`, `preprocessing`, ….
        recipe: how it was converted.
        thresholds: what calibration found.
        data: which images calibration used.
        reference_weights: store a relative path to this checkpoint and its SHA-256 instead of the weights.
        configuration: writes whatever else the adapter needs to build the network into a folder.
    """
    from safetensors.torch import save_file

    with atomic_directory(folder) as partial:
        save_file(_tensors(thresholds), partial / THRESHOLDS)
        if reference_weights is None:
            # clones, since safetensors refuses tensors that share memory (tied weights)
            state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
            save_file(_unshared(state), partial / WEIGHTS)
            weights = {"weights_file": WEIGHTS, "weights_sha256": sha256(partial / WEIGHTS)}
        else:
            relative = os.path.relpath(Path(reference_weights).resolve(), Path(folder).resolve())
            weights = {"weights_file": relative, "weights_sha256": sha256(reference_weights)}
        if configuration is not None:
            configuration(partial / CONFIGURATION)
        record = {
            "version": VERSION,
            "network": {**network, **weights},
            "recipe": recipe.to_dict(),
            "sites": {site: _facts(t) for site, t in thresholds.items()},
            "thresholds_sha256": sha256(partial / THRESHOLDS),
            "uncovered": [[*key, macs] for key, macs in thresholds.uncovered.items()],
            "folds": thresholds.folds,
            "provenance": thresholds.provenance,
            "data": data,
        }
        text = json.dumps(record, indent=1, ensure_ascii=False)
        (partial / RECORD).write_text(text, encoding="utf-8")


def load(folder: Path) -> Run:
    """Read a run directory; damage of any kind is named."""
    folder = Path(folder)
    if not (folder / RECORD).is_file():
        raise LoadError(
            f"{folder}: no run here ({RECORD} is missing). Make one with: onespike convert … --out {folder}"
        )
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(folder, f"{RECORD} is not JSON ({error})") from error
    if not isinstance(record, dict) or record.get("version") != VERSION:
        found = record.get("version") if isinstance(record, dict) else None
        raise LoadError(
            f"{folder}: the run has version {found!r}, and this onespike reads {VERSION}. Convert the network again."
        )
    try:
        file = _checked(folder, THRESHOLDS, record["thresholds_sha256"])
        thresholds = _thresholds(record, _read(file))
        return Run(folder, record["network"], Recipe.from_dict(record["recipe"]), thresholds, record["data"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _damaged(folder, f"{RECORD} lacks or garbles {error}") from error
    except OnespikeError as error:
        if isinstance(error, LoadError):
            raise
        raise _damaged(folder, str(error)) from error


def _tensors(thresholds: Thresholds) -> dict[str, Tensor]:
    sides = {}
    for site, threshold in thresholds.items():
        sides[f"{site}/positive"] = threshold.positive.contiguous()
        sides[f"{site}/negative"] = threshold.negative.contiguous()
    return _unshared(sides)


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        address = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return result


def _facts(threshold: SiteThreshold) -> dict[str, Any]:
    """All but the thresholds, which are tensors, and the site, which is the key."""
    skipped = ("site", "positive", "negative")
    return {
        f.name: getattr(threshold, f.name) for f in dataclasses.fields(threshold) if f.name not in skipped
    }


def _thresholds(record: dict[str, Any], tensors: dict[str, Tensor]) -> Thresholds:
    entries = {}
    for site, facts in record["sites"].items():
        facts = {**facts, "levels": tuple(facts["levels"]), "shape": tuple(facts["shape"])}
        positive, negative = tensors[f"{site}/positive"], tensors[f"{site}/negative"]
        entries[site] = SiteThreshold(site=site, positive=positive, negative=negative, **facts)
    uncovered = {(owner, operation): macs for owner, operation, macs in record["uncovered"]}
    return Thresholds(entries, uncovered, record["folds"], record["provenance"])


def _read(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except SafetensorError as error:
        raise _damaged(file.parent, f"{file.name} cannot be read ({error})") from error


def _checked(folder: Path, name: str, expected: str) -> Path:
    file = folder / name
    if not file.is_file():
        raise _damaged(folder, f"{name} is missing")
    if sha256(file) != expected:
        raise _damaged(folder, f"{name} is not the file that was saved (its SHA-256 differs)")
    return file


def _damaged(folder: Path, what: str) -> LoadError:
    return LoadError(f"{folder}: the run is damaged: {what}. Convert the network again.")


def versions() -> dict[str, str]:
    """The versions that matter for reproducing a run."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"torch": str(torch.__version__)}
    for package in ("onespike", "timm", "torchvision", "transformers", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
