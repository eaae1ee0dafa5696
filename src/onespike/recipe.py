"""How a network is converted: one frozen, versioned record, saved beside every result."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Self

import torch
from torch import Tensor

from onespike.errors import UsageError, unknown
from onespike.neurons import NEURONS, ROUNDINGS, parse_levels

VERSION = 1


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a converted network computes, apart from its weights and its data.

    Attributes:
        preset: the named starting point this recipe was made from.
        neuron: a name in `onespike.NEURONS`.
        levels: the fire function: `mixed:M` (eq. 12), `linear:M`, `exponential:M`, `density:M`, or integers `1,2,4`.
        rounding: `paper` puts thresholds at y−½ (eq. 11), `nearest` at the midpoints.
        scale: λ of eq. 8, in (0, 1]; softmax sites do not use it.
        percentile: p; thresholds stand at the top p % of each site's activations.
        domain: `all` takes the quantile over all elements, `sided` over those of one sign.
        softmax: `site` (eq. 16), `model`, `head`, `percentile:P` (the top P % instead of the largest), or a number
            that is the threshold itself.
        granularity: one threshold a `site`, or one a `channel`.
        io: `analog` leaves the network's input and its classifier head's input analog; `spiking` does not.
        include: only sites that match one of these globs spike.
        exclude: sites (or products without a rule) that match one of these globs stay analog.
        fold_batchnorm: merge BatchNorm into the convolution before it.
        factors: (glob, factor) pairs; the scale of a site is λ times the factor of the first glob that matches it.
        steps: T; above 1 the network runs T passes on running means, and its neurons keep membranes.
        placement: `synapse` puts neurons on the operands of products, `activation` in place of ReLUs.
        fixed: (glob, θ+, θ−) triples; the first glob that matches a site replaces its calibrated thresholds.
        passes: calibration passes by name, see `onespike list passes`.
        budget: the energy ratio that the passes meet; without one, the energy that the recipe has without them.
        energy: the column of the ledger that the budget means, `counts`, `nonzero` or `binary`.

    >>> Recipe(scale=0.25).levels
    'mixed:8'
    """

    preset: str = "sformer"
    neuron: str = "sfn"
    levels: str = "mixed:8"
    rounding: str = "paper"
    scale: float = 0.25
    percentile: float = 1.0
    domain: str = "all"
    softmax: str | float = "site"
    granularity: str = "site"
    io: str = "analog"
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    fold_batchnorm: bool = True
    factors: tuple[tuple[str, float], ...] = ()
    steps: int = 1
    placement: str = "synapse"
    fixed: tuple[tuple[str, float, float], ...] = ()
    passes: tuple[str, ...] = ()
    budget: float | None = None
    energy: str = "counts"

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 1:
            raise UsageError(f"scale must be in (0, 1], not {self.scale:g}. The paper uses 0.25 to 0.36.")
        if not 0 <= self.percentile < 50:
            raise UsageError(f"percentile must be in [0, 50), not {self.percentile:g}. The paper uses 1.")
        for kind, name, known in (
            ("preset", self.preset, PRESETS),
            ("neuron", self.neuron, NEURONS),
            ("rounding", self.rounding, ROUNDINGS),
            ("domain", self.domain, ("all", "sided")),
            ("granularity", self.granularity, ("site", "channel")),
            ("io", self.io, ("analog", "spiking")),
            ("placement", self.placement, ("synapse", "activation")),
        ):
            if name not in known:
                raise unknown(kind, name, known)
        if isinstance(self.softmax, str):
            if self.softmax_percentile is None and self.softmax not in ("site", "model", "head"):
                raise unknown("softmax threshold", self.softmax, ("site", "model", "head"))
        elif not 0 < self.softmax < math.inf:
            raise UsageError(
                f"a fixed softmax threshold must be positive and finite, not {self.softmax:g}. The paper uses 0.0035."
            )
        spec = parse_levels(self.levels)
        if self.steps < 1:
            raise UsageError(f"steps must be at least 1, not {self.steps}. The paper uses 1 and 2.")
        if self.steps > 1 and self.neuron.endswith("if") and spec.explicit != (1,):
            raise UsageError(
                f"neuron '{self.neuron}' fires one spike a step, and levels '{self.levels}' are steps of their own. "
                "With steps above 1 give levels '1,'."
            )
        if self.steps > 1 and self.neuron == "uniform":
            raise UsageError("neuron 'uniform' is plain quantisation and has one step. Use steps 1.")
        if self.budget is not None and not self.passes:
            raise UsageError(
                f"the budget {self.budget:g} is met by passes, and there are none. Name some: --passes nearest,allocate."
            )
        if self.passes and (self.steps > 1 or self.placement != "synapse"):
            raise UsageError(
                "passes are for one timestep and neurons at synapses. Leave out --passes, or the others."
            )
        for glob, factor in self.factors:
            if not 0 < factor < float("inf"):
                raise UsageError(
                    f"the factor of {glob!r} must be positive, not {factor:g}. Leave it out for 1."
                )

    @property
    def softmax_percentile(self) -> float | None:
        """P of `softmax="percentile:P"`."""
        kind, _, number = str(self.softmax).partition(":")
        if kind != "percentile":
            return None
        try:
            percentile = float(number)
        except ValueError:
            percentile = math.nan
        if not 0 <= percentile < 50:
            raise UsageError(
                f"softmax {self.softmax!r}: P must be in [0, 50). Write for example percentile:0.1."
            )
        return percentile

    def chooses(self, site: str) -> bool:
        """Whether the include globs name this site and no exclude glob does."""
        return any(fnmatchcase(site, g) for g in self.include) and not self.excludes(site)

    def excludes(self, site: str) -> bool:
        return any(fnmatchcase(site, glob) for glob in self.exclude)

    def factor(self, site: str) -> float:
        """How much larger than λθ this site's step is."""
        return next((factor for glob, factor in self.factors if fnmatchcase(site, glob)), 1.0)

    def fixed_threshold(self, site: str) -> tuple[Tensor, Tensor] | None:
        """θ+ and θ− of a site that are given and not calibrated."""
        for glob, positive, negative in self.fixed:
            if fnmatchcase(site, glob):
                return torch.tensor(float(positive)), torch.tensor(float(negative))
        return None

    def replace(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self)
        if not self.passes:  # what the passes are to meet says nothing without them
            fields = {k: v for k, v in fields.items() if k not in ("passes", "budget", "energy")}
        return {"version": VERSION, **fields}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Self:
        fields = dict(record)
        version = fields.pop("version", None)
        if version != VERSION:
            raise UsageError(
                f"this recipe has version {version!r}, and this onespike reads {VERSION}. Convert again."
            )
        known = {f.name for f in dataclasses.fields(cls)}
        for name in fields:
            if name not in known:
                raise unknown("recipe field", name, known)
        for name in ("include", "exclude", "passes"):
            fields[name] = tuple(fields.get(name, getattr(cls, name)))
        fields["factors"] = tuple((glob, factor) for glob, factor in fields.get("factors", ()))
        fields["fixed"] = tuple((glob, up, down) for glob, up, down in fields.get("fixed", ()))
        return cls(**fields)


PRESETS: dict[str, dict[str, Any]] = {
    "sformer": {},
    "paper-vit-base": {"scale": 0.252, "softmax": 0.0035},
    "paper-vit-large": {"scale": 0.313, "softmax": 0.0036},
    "paper-eva": {"scale": 0.360, "softmax": 0.0035},
    "paper-eva-detection": {"scale": 0.350, "softmax": 0.0036},
    "paper-eva-segmentation": {"scale": 0.333, "softmax": 0.0036},
    "best": {
        "passes": ("nearest", "layout", "positions", "center", "allocate", "correct", "refit", "tune"),
        "budget": 0.2,
        "energy": "binary",
    },
    # baselines: rate coding over T steps, its one-step equal, ECMT, and plain 8-bit quantisation
    "if": {"neuron": "if", "levels": "1,", "steps": 32, "percentile": 0.0, "scale": 1.0},
    "mtn": {"neuron": "mtn", "levels": "linear:16", "percentile": 0.0, "scale": 1.0},
    "ecmt": {
        "levels": "exponential:4", "steps": 4, "scale": 1.0, "softmax": 0.0125,
        "fixed": (("*.fc2:linear0_input", 0.25, 0.08),),
    },
    "uniform": {"neuron": "uniform", "levels": "bits:8", "percentile": 0.0, "scale": 1.0},
}  # fmt: skip
"""Named starting points: the paper's own settings, the passes together, and baselines to compare with."""


def preset(name: str, **changes: Any) -> Recipe:
    """The recipe of a named preset, with the changes given.

    >>> preset("sformer", scale=0.3).scale
    0.3
    >>> preset("paper-eva-segmentation").scale, preset("paper-eva-detection").softmax
    (0.333, 0.0036)
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return Recipe(**{"preset": name, **PRESETS[name], **changes})
