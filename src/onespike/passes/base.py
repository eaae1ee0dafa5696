"""Passes: named improvements of a calibration, each a pure function of thresholds, recipe and calibration data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from onespike.calibration.thresholds import SiteThreshold, Thresholds
from onespike.conversion.network import analog_reason
from onespike.errors import UsageError, unknown
from onespike.passes.axes import Axes, axes
from onespike.passes.parts import Parts
from onespike.recipe import Recipe
from onespike.sites import Site
from onespike.tasks import Inferred, Meaning

Progress = Callable[[str, int], Callable[[Iterable[Any]], Iterable[Any]]]


@dataclass(frozen=True)
class PassContext:
    """What every pass may use besides the thresholds: the original network, unlabeled inputs and the budget.

    Attributes:
        model: the original network; no pass changes it.
        inputs: calibration batches of any form, in memory or read on demand; here they are cut into `Parts`.
        budget: the energy ratio to meet, or None for that of the incoming thresholds.
        energy: the ledger's column for the budget.
        seed: the seed of all sampling.
        folder: the folder for a long pass's resume data, or None.
        progress: progress(title, total) wraps the batches of a long stage.
        memory: measurements that several passes share.
        task: the meaning of the network's output; by default inferred from its form.
    """

    model: nn.Module
    inputs: Sequence[Any]
    budget: float | None = None
    energy: str = "counts"
    seed: int = 0
    folder: Path | None = None
    progress: Progress = field(default=lambda title, total: lambda batches: batches)
    memory: dict[str, Any] = field(default_factory=dict)
    task: Meaning = field(default_factory=Inferred)

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, Parts):
            object.__setattr__(self, "inputs", Parts(self.inputs, self.task))

    def portion(self, images: int) -> int:
        """Return how many inputs of the task stand for so many of 256 images; a window of a text holds many answers.

        >>> PassContext(nn.Identity(), []).portion(64)
        64
        """
        return max(1, images * self.task.enough // 256)


@dataclass(frozen=True)
class PassState:
    """What a pass takes and returns.

    Attributes:
        thresholds: the thresholds so far.
        recipe: how they are converted.
        layouts: the layouts that `allocate` may choose from at a site.
        unserved: sites that spike, but of which passes learn nothing; they keep their thresholds.
    """

    thresholds: Thresholds
    recipe: Recipe
    layouts: dict[Site, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    unserved: frozenset[Site] = frozenset()

    @cached_property
    def firing(self) -> dict[Site, SiteThreshold]:
        """Return the sites that fire under the recipe."""
        return {s: t for s, t in self.thresholds.items() if analog_reason(t, self.recipe) is None}

    @cached_property
    def spiking(self) -> dict[Site, SiteThreshold]:
        """Return the sites that fire under the recipe and that passes may change."""
        return {s: t for s, t in self.firing.items() if s not in self.unserved}

    @cached_property
    def drivers(self) -> dict[str, Site]:
        """Return product → the site that drives it, whose spikes the ledger counts: its first spiking operand."""
        found: dict[str, Site] = {}
        for site in self.firing:
            found.setdefault(site.product, site)
        return found

    def drives(self, site: Site) -> bool:
        return self.drivers[site.product] == site

    def axes(self, site: Site) -> Axes:
        first = next(t for s, t in self.thresholds.items() if s.product == site.product)
        return axes(self.thresholds[site], first)

    def scale(self, site: Site) -> float:
        """Return the factor from threshold to step: λ times the site's factor."""
        softmax = self.thresholds[site].role == "softmax"
        return (1.0 if softmax else self.recipe.scale) * self.recipe.factor(site)

    def with_sites(self, changes: dict[Site, dict[str, Any]], **recipe: Any) -> PassState:
        """Return another state, in which some fields of some sites differ."""
        entries = {s: replace(t, **changes[s]) if s in changes else t for s, t in self.thresholds.items()}
        thresholds = replace(self.thresholds, entries=entries)
        return replace(self, thresholds=thresholds, recipe=self.recipe.replace(**recipe))


Pass = Callable[[PassState, PassContext], PassState]

PASSES: dict[str, Pass] = {}
"""Name → pass, in running order, regardless of the order of a request."""

NEEDS: dict[str, tuple[str, ...]] = {}
CONFLICTS: dict[str, tuple[str, ...]] = {}
WHOLE: set[str] = set()
"""Passes that change or train weights, and need all of them in memory."""
AFFINE: set[str] = set()
"""Passes that give sites centers, offsets or gains, which not every neuron codes."""
STEPS: set[str] = set()
"""Passes that choose the energy by their steps; behind any others all steps are scaled to the budget."""


def calibration_pass(
    name: str,
    needs: tuple[str, ...] = (),
    conflicts: tuple[str, ...] = (),
    *,
    whole: bool = False,
    affine: bool = False,
    steps: bool = False,
) -> Callable[[Pass], Pass]:
    """Registers a pass under the name that recipes and the command line know.

    It is `whole` if it needs all weights in memory, `affine` if it gives sites centers, offsets or gains, and `steps` if
    its steps stay as they are: else they are scaled to the budget or, without one, to the energy of before.

    >>> @calibration_pass("nearest")
    ... def again(state, given): ...
    Traceback (most recent call last):
    onespike.errors.UsageError: the pass 'nearest' is registered already. Choose another name.
    """

    def register(function: Pass) -> Pass:
        if name in PASSES:
            raise UsageError(f"the pass '{name}' is registered already. Choose another name.")
        PASSES[name], NEEDS[name], CONFLICTS[name] = function, needs, conflicts
        if whole:
            WHOLE.add(name)
        if affine:
            AFFINE.add(name)
        if steps:
            STEPS.add(name)
        return function

    return register


def parse_passes(text: str) -> tuple[str, ...]:
    """Parse `nearest,center,allocate` into names in running order.

    >>> parse_passes("allocate, nearest")
    ('nearest', 'allocate')
    >>> parse_passes("")
    ()
    """
    return check_passes([name.strip() for name in text.split(",") if name.strip()])


def check_passes(names: Sequence[str]) -> tuple[str, ...]:
    """Return the passes in order; raise an error for an unknown, repeated, missing or conflicting one."""
    for name in names:
        if name not in PASSES:
            raise unknown("pass", name, PASSES)
        if list(names).count(name) > 1:
            raise UsageError(f"the pass '{name}' is given twice. Name each pass once.")
        for other in CONFLICTS[name]:
            if other in names:
                raise UsageError(
                    f"the passes '{name}' and '{other}' exclude each other. Leave one of them out."
                )
        for other in NEEDS[name]:
            if other not in names:
                raise UsageError(f"the pass '{name}' needs '{other}'. Add it, or leave '{name}' out.")
    return tuple(name for name in PASSES if name in names)
