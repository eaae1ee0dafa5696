"""Thresholds: what calibration found at every site, with provenance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from onespike.recipe import Recipe
from onespike.sites import Site
from onespike.spikes import parse_levels

CALIBRATED = ("neuron", "levels", "percentile", "domain", "softmax", "granularity")
"""The recipe's fields that act in calibration alone: other values take other thresholds."""


def calibrated_by(recipe: Recipe) -> dict[str, Any]:
    """Return what a recipe says about calibration; thresholds keep it, and `convert` compares.

    >>> calibrated_by(Recipe(levels="8"))["levels"]
    'mixed:8'
    """
    fields = {name: getattr(recipe, name) for name in CALIBRATED}
    return fields | {"levels": str(parse_levels(recipe.levels))}


@dataclass(frozen=True)
class SiteThreshold:
    """What calibration found at one site.

    Attributes:
        site: the place.
        role: `activation`, `softmax`, `input`, `head`, `weight` or `constant`.
        positive: θ+, 0 where that side is off; a scalar, or a tensor that broadcasts to the activation.
        negative: θ−, likewise.
        levels: the integer levels in use at this site.
        largest: the largest magnitude seen.
        shape: the shape of the first activation seen.
        calls: visits per forward; above 1 the module runs several times and shares its neurons.
        macs: multiply-accumulates of the product, per input.
        rounding: the rounding of this site alone; None for the recipe's.
        center: what the neuron subtracts before it fires, a tensor that broadcasts; None for nothing.
        offset: the value to which its spikes are added; None for the center.
        gain: powers of two by which the step of each position is larger; None for 1.
        typical: the mean magnitude of a usual row about the center, for steps per row; None for one step.
        change: what is added to the weight behind the spikes and, in a last column, to its bias; None for nothing.
    """

    site: Site
    role: str
    positive: Tensor
    negative: Tensor
    levels: tuple[int, ...]
    largest: float
    shape: tuple[int, ...]
    calls: float
    macs: float
    rounding: str | None = None
    center: Tensor | None = None
    offset: Tensor | None = None
    gain: Tensor | None = None
    typical: Tensor | None = None
    change: Tensor | None = None

    @property
    def constants(self) -> dict[str, Tensor]:
        """Return the constants that the neuron holds beside its thresholds, as far as they are set."""
        named = {name: getattr(self, name) for name in ("center", "offset", "gain", "typical")}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Thresholds(Mapping[Site, SiteThreshold]):
    """The thresholds of all sites in the order of execution, with their provenance.

    Attributes:
        entries: site → threshold.
        uncovered: (module, operation) → MACs per input of products that no rule reaches.
        folds: convolution → the BatchNorm that can be folded into it.
        provenance: model class, number of samples, observer, versions, the recipe's part in calibration, and the passes applied.
    """

    entries: dict[Site, SiteThreshold]
    uncovered: dict[tuple[str, str], float] = field(default_factory=dict)
    folds: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, site: Site | str) -> SiteThreshold:
        return self.entries[Site.parse(site) if isinstance(site, str) else site]

    def __iter__(self) -> Iterator[Site]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def passes(self) -> tuple[str, ...]:
        """Return the calibration passes that have been applied."""
        return tuple(self.provenance.get("passes", ()))

    @property
    def macs(self) -> float:
        """Return all multiply-accumulates per input, including those without a rule."""
        products = {site.product: threshold.macs for site, threshold in self.items()}
        return sum(products.values()) + sum(self.uncovered.values())
