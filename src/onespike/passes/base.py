"""Passes: named improvements of a calibration, each a pure function of thresholds, recipe and calibration data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from onespike.calibration.inputs import Parts
from onespike.calibration.thresholds import Merging, SiteThreshold, Thresholds
from onespike.conversion.network import analog_reason, convert
from onespike.errors import UsageError, unknown
from onespike.recipe import Recipe
from onespike.sites import Site
from onespike.tasks import Inferred, Meaning

if TYPE_CHECKING:
    from onespike.passes.allocate import Curves
    from onespike.passes.statistics import Fisher, Sample


@dataclass
class Memory:
    """Measurements that several passes share."""

    merging: Merging | None = None  # the network that they are of
    fisher: dict[Site, Fisher] | None = None
    samples: tuple[dict[Site, list[float] | None], dict[Site, list[Sample]]] | None = None  # gains, values
    curves: tuple[PassState, str, Curves] | None = None  # those of a state and a column
    tried: list[float] = field(default_factory=list)  # the ratios that the last `fit` has measured

    def of(self, thresholds: Thresholds) -> Memory:
        """Return this memory, emptied if it is of a network that merges other tokens."""
        if self.merging != thresholds.merging:
            self.__init__(thresholds.merging)  # type: ignore[misc]
        return self


@dataclass(frozen=True)
class PassContext:
    """What every pass may use besides the thresholds: the original network, unlabeled inputs and the budget."""

    model: nn.Module
    inputs: Sequence[Any]  # calibration batches of any form, in memory or read on demand: cut into `Parts`
    budget: float | None = None  # the energy ratio to meet, or None for that of the incoming thresholds
    energy: str = "counts"  # its column
    seed: int = 0
    folder: Path | None = None  # for a long pass's resume data
    memory: Memory = field(default_factory=Memory)
    task: Meaning = field(default_factory=Inferred)  # what the output means

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, Parts):
            object.__setattr__(self, "inputs", Parts(self.inputs, self.task))

    def portion(self, images: int) -> int:
        """Return how many inputs of the task stand for so many of 256 images; a window of a text holds many answers."""
        return max(1, images * self.task.enough // 256)


class Axes(NamedTuple):
    """The axes of one operand, counted from the back, in ascending order."""

    center: tuple[int, ...] = ()  # where a constant may differ: its product stays a constant, or one row
    step: tuple[int, ...] = ()  # where a step may differ: it folds into the other operand or the result
    position: int | None = None  # that of tokens, where steps may differ by powers of two


def axes(threshold: SiteThreshold, first: SiteThreshold) -> Axes:
    """Return the axes of a site; `first` is the first operand of the same product, or the site itself.

    x·Wᵀ folds a step per channel into W. In q·kᵀ a step can be folded only per head; in A·v the step of a
    channel of v scales the result.
    """
    site, dims = threshold.site, len(threshold.shape)
    heads = (-3,) if dims > 3 else ()
    if site.operation == "linear":
        return Axes((-1,), (-1,), -2 if dims > 2 else None)
    if site.operation == "conv":
        return Axes((1 - dims,), (1 - dims,)) if dims > 2 else Axes()
    if site.operation != "matmul" or dims < 3:
        return Axes()
    if threshold.role == "softmax":
        return Axes((), heads, -2)
    if site.role == "lhs":
        return Axes((*heads, -1), heads, -2)
    if first.role == "softmax":
        return Axes((*heads, -1), (*heads, -1), -2)
    return Axes((*heads, -2), heads, -1)


def reduced(x: Tensor, axes: tuple[int, ...], how: str = "sum") -> Tensor:
    """Return the sum or mean of x over all axes but these, which stay in place; the batch axis goes.

    >>> import torch
    >>> reduced(torch.ones(2, 3, 4), (-1,)).shape, reduced(torch.ones(2, 3, 4, 5), (-3, -1)).shape
    (torch.Size([1, 4]), torch.Size([3, 1, 5]))
    """
    others = [axis for axis in range(-x.dim(), 0) if axis not in axes]
    result: Tensor = getattr(x, how)(others, keepdim=True)
    return result.squeeze(0)


@dataclass(frozen=True)
class PassState:
    """What a pass takes and returns: the thresholds so far, and the recipe by which they are converted."""

    thresholds: Thresholds
    recipe: Recipe
    # levels for `allocate` to choose from
    layouts: dict[Site, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    # sites that spike, but of which passes learn nothing; they stay as they are
    unserved: frozenset[Site] = frozenset()

    @cached_property
    def firing(self) -> dict[Site, SiteThreshold]:
        return {s: t for s, t in self.thresholds.items() if analog_reason(t, self.recipe) is None}

    @cached_property
    def spiking(self) -> dict[Site, SiteThreshold]:
        """The sites that fire under the recipe and that passes may change."""
        return {s: t for s, t in self.firing.items() if s not in self.unserved}

    def drives(self, site: Site) -> bool:
        """Return whether the ledger counts the spikes of this site: it is the first spiking operand of its product."""
        return next(other for other in self.firing if other.product == site.product) == site

    @cached_property
    def axes(self) -> dict[Site, Axes]:
        first = {site.product: t for site, t in reversed(self.thresholds.entries.items())}
        return {site: axes(t, first[site.product]) for site, t in self.thresholds.items()}

    def scale(self, site: Site) -> float:
        """Return the factor from threshold to step: λ times the site's factor."""
        softmax = self.thresholds[site].role == "softmax"
        return (1.0 if softmax else self.recipe.scale) * self.recipe.factor(site)

    def step(self, site: Site) -> Tensor:
        """Return the steps of a site: those of the positive side unless that is off."""
        threshold = self.thresholds[site]
        side = threshold.positive if bool((threshold.positive > 0).any()) else threshold.negative
        return side * self.scale(site)

    def network(self, model: nn.Module) -> nn.Module:
        return convert(model, self.thresholds, self.recipe, share_weights=True)

    def with_sites(self, changes: dict[Site, dict[str, Any]]) -> PassState:
        """Return another state, in which some fields of some sites differ."""
        entries = {s: replace(t, **changes[s]) if s in changes else t for s, t in self.thresholds.items()}
        return replace(self, thresholds=replace(self.thresholds, entries=entries))


Improve = Callable[[PassState, PassContext], PassState]
STAGES = ("network", "levels", "constants", "steps", "corrections", "learning", "last")
"""What passes decide, in this order; passes of one stage run in the order in which they are registered."""


@dataclass(frozen=True)
class Pass:
    """A registered pass: its function, what it needs, and what it does."""

    run: Improve
    stage: str = "last"
    needs: tuple[str, ...] = ()
    fisher: bool = False  # it reads `fisher`, likewise `samples`; where those lack a site, it stays as it is
    samples: bool = False
    whole: bool = False  # it changes or trains weights, all of which must be in memory
    affine: bool = False  # it gives sites centers, offsets or gains, which not every neuron codes
    steps: bool = False  # its steps stay; else they are scaled to the budget, or the energy of before


PASSES: dict[str, Pass] = {}  # name → pass, in running order, regardless of the order of a request


def calibration_pass(name: str, **traits: Any) -> Callable[[Improve], Improve]:
    """Registers a `Pass` under the name that recipes and the command line know.

    >>> @calibration_pass("nearest")
    ... def again(state, context): ...
    Traceback (most recent call last):
    onespike.errors.UsageError: the pass 'nearest' is registered already. Choose another name.
    """

    def register(run: Improve) -> Improve:
        if name in PASSES:
            raise UsageError(f"the pass '{name}' is registered already. Choose another name.")
        if traits.get("stage", "last") not in STAGES:
            raise unknown("stage of passes", traits["stage"], STAGES)
        PASSES[name] = Pass(run, **traits)
        for other in sorted(PASSES, key=lambda other: STAGES.index(PASSES[other].stage)):
            PASSES[other] = PASSES.pop(other)
        return run

    return register
