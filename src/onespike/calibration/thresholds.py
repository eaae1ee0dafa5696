"""Thresholds: what calibration found at every site, with provenance."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from onespike.recipe import Recipe
from onespike.sites import Site
from onespike.spikes import parse_levels

EDGES = ("input", "head")  # the roles of the network's input and of its output layer's input
CALIBRATED = ("neuron", "levels", "percentile", "domain", "softmax", "granularity", "io", "payload_bits")
"""The recipe's fields that act in calibration alone: other values take other thresholds."""


def calibrated_by(recipe: Recipe) -> dict[str, Any]:
    """Return what a recipe says about calibration; thresholds keep it, and `convert` compares."""
    return {name: getattr(recipe, name) for name in CALIBRATED} | {"levels": parse_levels(recipe.levels).name}


def is_bias(site: Site, model: nn.Module) -> bool:
    """Return whether a constant of each channel adds one number to each output: behind padding, it is one per pixel."""
    if site.operation != "conv":
        return site.operation == "linear"
    module = model.get_submodule(site.owner)
    if not isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return False
    return module.padding == "valid" or set(module.padding) == {0}


@dataclass(frozen=True)
class SiteThreshold:
    """What calibration and passes chose at one site, as it is stored; a recipe (λ, factors) makes a neuron's code of it."""

    site: Site
    role: str  # activation, softmax, input, head, weight or constant
    positive: Tensor  # θ+, 0 where a side is off; thresholds and constants broadcast to the activation
    negative: Tensor
    levels: tuple[int, ...]
    largest: float  # magnitude seen
    shape: tuple[int, ...]  # of the first activation seen
    calls: float  # per forward; above 1 the module runs several times and shares its neurons
    macs: float  # of the product, per input
    rounding: str | None = None  # None for the recipe's
    center: Tensor | None = None
    offset: Tensor | None = None  # None for the center
    gain: Tensor | None = None
    typical: Tensor | None = None
    change: Tensor | None = None  # of the weight behind the spikes and, in a last column, of its bias

    def centered(self, x: Tensor) -> Tensor:
        return x if self.center is None else x - self.center

    @property
    def constants(self) -> dict[str, Tensor]:
        """Return the constants that the neuron holds beside its thresholds, as far as they are set."""
        named = {name: getattr(self, name) for name in ("center", "offset", "gain", "typical")}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Merging:
    """How many pairs of tokens each block merges, in running order, and the MACs per input that this saves the original."""

    pairs: dict[str, int]
    saved: float


@dataclass(frozen=True)
class Thresholds(Mapping[Site, SiteThreshold]):
    """The thresholds of all sites in the order of execution, with their provenance; `thresholds["0:linear0_input"]` also works.

    `provenance` has the model's class, samples, observer, versions, what the recipe set, and the passes.
    """

    entries: dict[Site, SiteThreshold]
    # (module, operation) → MACs per input of products that no rule reaches
    uncovered: dict[tuple[str, str], float] = field(default_factory=dict)
    # convolution → the BatchNorm that can be folded into it
    folds: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    merging: Merging | None = None  # which blocks merge tokens, if any do

    def __getitem__(self, site: Site | str) -> SiteThreshold:
        return self.entries[Site.parse(site) if isinstance(site, str) else site]

    def __iter__(self) -> Iterator[Site]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def passes(self) -> tuple[str, ...]:
        return tuple(self.provenance.get("passes", ()))

    @property
    def macs(self) -> float:
        """Return all multiply-accumulates of the original per input, including those without a rule."""
        products = {site.product: threshold.macs for site, threshold in self.items()}
        saved = 0.0 if self.merging is None else self.merging.saved
        return sum(products.values()) + sum(self.uncovered.values()) + saved
