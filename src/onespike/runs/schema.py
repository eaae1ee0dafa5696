"""The schema of a run's record."""

from __future__ import annotations

from dataclasses import dataclass

from onespike.recipe import Recipe


@dataclass(frozen=True)
class Network:
    spec: str
    weights: str
    attention: str | None
    weights_file: str
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
