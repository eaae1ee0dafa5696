"""Refusals before a conversion: globs without a site, uncovered products, missing passes, another calibration."""

from __future__ import annotations

from fnmatch import fnmatchcase

from onespike.calibration.thresholds import Thresholds, calibrated_by
from onespike.errors import ConversionError, UsageError
from onespike.neurons import NEURONS
from onespike.recipe import Recipe
from onespike.sites.coverage import ANALOG


def check_globs(thresholds: Thresholds, recipe: Recipe) -> None:
    """Reject globs that match no site."""
    sites = [*map(str, thresholds), *(f"{owner}:{operation}" for owner, operation in thresholds.uncovered)]
    globs = [("include", glob) for glob in recipe.include] + [("exclude", glob) for glob in recipe.exclude]
    globs += [("factor", glob) for glob, _ in recipe.factors] + [("fixed", glob) for glob, *_ in recipe.fixed]
    for option, glob in globs:
        if not any(fnmatchcase(site, glob) for site in sites):
            remedy = "`onespike inspect RUN` lists all of them."
            if option == "fixed":
                remedy = "Name sites of this network, or take a preset without fixed thresholds."
            raise UsageError(f"convert: {option} {glob!r} matches no site; the first is {sites[0]}. {remedy}")


def check_coverage(thresholds: Thresholds, recipe: Recipe) -> None:
    """Refuse a network in which a product would be neither spiking nor listed as analog."""
    unknown = {k: m for k, m in thresholds.uncovered.items() if k[1] not in ANALOG}
    open_ = {k: m for k, m in unknown.items() if not recipe.excludes(f"{k[0]}:{k[1]}")}
    if not open_:
        return
    total = thresholds.macs or 1
    first = [
        f"{operation} in {owner or 'the network itself'} ({_share(macs, total)} of MACs)"
        for (owner, operation), macs in list(open_.items())[:5]
    ]
    more = f" and {len(open_) - 5} more" if len(open_) > 5 else ""
    few = len(open_) <= 5  # many are named by their operations
    every = list(dict.fromkeys(f"{owner if few else '*'}:{operation}" for owner, operation in open_))
    raise ConversionError(
        f"convert: {len(open_)} products are not covered: {', '.join(first)}{more}. Add a rule with "
        f"@onespike.synaptic, or leave them analog with exclude={every}."
    )


def check_passes(thresholds: Thresholds, recipe: Recipe) -> None:
    """Refuse thresholds that have not been through the recipe's passes: the result would be another network."""
    missing = [name for name in recipe.passes if name not in thresholds.passes]
    if missing:
        raise UsageError(
            f"convert: the recipe has the passes {', '.join(missing)}, and the thresholds have not been through them. "
            "Do all of it with onespike.spike(model, batches, recipe), or convert with recipe.replace(passes=(), budget=None, max_drop=None)."
        )


def check_calibration(thresholds: Thresholds, recipe: Recipe) -> None:
    """Refuse a recipe that asks for another calibration: the thresholds would not follow it."""
    asked = calibrated_by(recipe)
    softmax = any(threshold.role == "softmax" for threshold in thresholds.values())
    for name, value in thresholds.provenance.get("recipe", {}).items():
        if name in ("neuron", "softmax") and not softmax:
            continue
        if name == "neuron" and NEURONS[value].scaled == NEURONS[recipe.neuron].scaled:
            continue  # eq. 16 asks only whether a neuron has a scale
        if name == "io" and "int8" not in (value, asked[name]):
            continue  # the same thresholds, whether they are used or not
        if value != asked[name]:
            raise UsageError(
                f"convert: the thresholds were calibrated with {name}={value!r}, and the recipe has {name}={asked[name]!r}. "
                "Calibrate with this recipe: calibrate(model, batches, recipe)."
            )


def _share(macs: float, total: float) -> str:
    return f"{100 * macs / total:.1f} %" if macs else "an unknown share"
