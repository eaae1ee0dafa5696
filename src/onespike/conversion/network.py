"""Conversion: model + thresholds + recipe → a network whose products receive spikes."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from onespike.calibration.thresholds import EDGES, SiteThreshold, Thresholds, calibrated_by
from onespike.conversion.attach import attach_, detach_
from onespike.conversion.firing import Analog, Neurons, is_spiking, named_neurons
from onespike.conversion.weights import fold_, refit_, round_, unfold_, unrounded
from onespike.errors import ConversionError, UsageError
from onespike.neurons import NEURONS, EightBit, Neuron, Scale
from onespike.recipe import Recipe
from onespike.runtime.forward import check_network, device_of
from onespike.sites.coverage import ANALOG
from onespike.spikes.code import few_digits

Network = TypeVar("Network", bound=nn.Module)

REASONS = {
    "input": "input of the network",
    "head": "input of the output layer",
    "weight": "plays a weight: the same for every input",
    "constant": "constant over calibration",
}


@dataclass(frozen=True)
class Conversion:
    """How a network was converted: what it takes, beside the original, to convert it again."""

    thresholds: Thresholds
    recipe: Recipe

    def __deepcopy__(self, memo: dict[int, Any]) -> Conversion:
        return self  # nothing in it ever changes


def analog_reason(threshold: SiteThreshold, recipe: Recipe) -> str | None:
    """Return why this site stays analog under the recipe, or None if it spikes."""
    if threshold.role in ("weight", "constant"):
        return REASONS[threshold.role]
    if recipe.placement == "activation" and not threshold.site.is_activation:
        return REASONS.get(threshold.role, "fed by the neurons in place of ReLUs")
    if recipe.excludes(threshold.site):
        return "excluded"
    if not recipe.chooses(threshold.site):
        return "not included"
    if threshold.role in EDGES and recipe.io != "spiking":
        return REASONS[threshold.role]
    if not bool((threshold.positive > 0).any() or (threshold.negative > 0).any()):
        return f"no threshold: over {100 - recipe.percentile:g} % of its values are zero"
    return None


def _neuron(threshold: SiteThreshold, recipe: Recipe, scale: Scale) -> Neuron:
    name = recipe.neuron
    if f"dual-{name}" in NEURONS and bool((threshold.negative > 0).any()):
        name = f"dual-{name}"
    kind, factor = NEURONS[name], recipe.factor(threshold.site)
    if threshold.constants and not kind.affine:
        raise UsageError(
            f"convert: {threshold.site} has a center, and neuron '{recipe.neuron}' codes none. Use neuron='sfn'."
        )
    positive, negative = recipe.fixed_threshold(threshold.site) or (threshold.positive, threshold.negative)
    scaled = kind.scaled and threshold.role != "softmax"
    lambda_ = float(scale.value) if scaled else 1.0
    for side in (positive, negative):
        if bool((side > 0).any()) and not bool((side * factor * lambda_ > 0).any()):
            raise UsageError(
                f"convert: the step of {threshold.site}, {lambda_:g} times its threshold {float(side.max()):g} times "
                f"the factor {factor:g}, is 0 in float32. Give a larger scale or factor."
            )
    if recipe.step_digits:
        positive, negative = (
            _shiftable(side, factor * lambda_, recipe.step_digits) for side in (positive, negative)
        )
    neuron = kind(
        positive * factor,
        negative * factor,
        levels=threshold.levels,
        rounding=threshold.rounding or recipe.rounding,
        scale=scale if scaled else None,
        **threshold.constants,
    )
    neuron.site = str(threshold.site)
    return neuron


def _shiftable(side: Tensor, factor: float, digits: int) -> Tensor:
    """Return the thresholds nearby whose steps have reciprocals of a few binary digits; a side that is off stays so."""
    reciprocal = few_digits(1 / (side.double() * factor), digits)
    return torch.where(side > 0, 1 / reciprocal / factor, 0.0).to(side.dtype)


def _placed(threshold: SiteThreshold, recipe: Recipe, scale: Scale, owner: nn.Module) -> Neuron | Analog:
    """Return what stands at a site: a neuron, an edge in 8 bits, or the reason why it stays analog."""
    reason = analog_reason(threshold, recipe)
    if reason is None:
        return _neuron(threshold, recipe, scale)
    if recipe.io != "int8" or threshold.role not in EDGES or reason != REASONS[threshold.role]:
        return Analog(reason)
    if (why := unrounded(owner, threshold.site)) is not None:
        return Analog(f"{reason}; not in 8 bits, since {why}")
    return EightBit(
        threshold.positive, threshold.negative, levels=threshold.levels, rounding="nearest", reason=reason, **threshold.constants
    )  # fmt: skip


def _multiplies(module: nn.Module) -> bool:
    """Return whether a module looks like a product with a weight (the output map of torch's attention never runs)."""
    weight = module._parameters.get("weight")
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag, NonDynamicallyQuantizableLinear)):
        return False
    return weight is not None and weight.dim() > 1 and not hasattr(module, "neurons")


def _check_globs(thresholds: Thresholds, recipe: Recipe) -> None:
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


def _check_coverage(thresholds: Thresholds, recipe: Recipe) -> None:
    """Refuse a network in which a product would be neither spiking nor listed as analog."""
    unknown = {
        place: macs
        for place, macs in thresholds.uncovered.items()
        if place[1] not in ANALOG and not recipe.excludes(":".join(place))
    }
    if not unknown:
        return
    whole, few = thresholds.macs or 1, len(unknown) <= 5
    first = []
    for (owner, operation), macs in list(unknown.items())[:5]:
        share = f"{100 * macs / whole:.1f} %" if macs else "an unknown share"
        first.append(f"{operation} in {owner or 'the network itself'} ({share} of MACs)")
    more = "" if few else f" and {len(unknown) - 5} more"
    # many are named by their operations
    every = list(dict.fromkeys(f"{owner if few else '*'}:{operation}" for owner, operation in unknown))
    raise ConversionError(
        f"convert: {len(unknown)} products are not covered: {', '.join(first)}{more}. Add a rule with "
        f"@onespike.synaptic, or leave them analog with exclude={every}."
    )


def _check_passes(thresholds: Thresholds, recipe: Recipe) -> None:
    """Refuse thresholds that have not been through the recipe's passes: the result would be another network."""
    missing = [name for name in recipe.passes if name not in thresholds.passes]
    if missing:
        raise UsageError(
            f"convert: the recipe has the passes {', '.join(missing)}, and the thresholds have not been through them. "
            "Do all of it with onespike.spike(model, batches, recipe), or convert with recipe.replace(passes=(), budget=None, max_drop=None)."
        )


def _check_calibration(thresholds: Thresholds, recipe: Recipe) -> None:
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


def convert_(model: Network, thresholds: Thresholds, recipe: Recipe | None = None) -> Network:
    """Convert a network in place and return it; `revert_` undoes it."""
    check_network("convert", model)
    recipe = recipe or Recipe()
    _check_passes(thresholds, recipe)
    _check_calibration(thresholds, recipe)
    if is_converted(model):
        raise ConversionError("convert: this network is converted already. Call revert_ on it first.")
    _check_coverage(thresholds, recipe)
    _check_globs(thresholds, recipe)
    scale, plan = Scale(recipe.scale), dict[str, Neurons]()
    changes, edges = dict[str, Tensor](), dict[str, EightBit]()
    modules = dict(model.named_modules())
    for site, threshold in thresholds.items():
        if site.is_activation and recipe.placement == "synapse":
            continue
        if site.owner not in modules:
            raise ConversionError(
                f"convert: the thresholds name {site}, and the network has no module {site.owner!r}. "
                "Calibrate this very network."
            )
        if hasattr(modules[site.owner], "neurons"):
            raise ConversionError(
                f"convert: {site.owner or 'the network itself'} has an attribute 'neurons' of its own. Rename it."
            )
        of_owner = plan.setdefault(site.owner, Neurons(site.owner))
        of_owner[site.key] = placed = _placed(threshold, recipe, scale, modules[site.owner])
        if isinstance(placed, EightBit):
            edges[site.owner] = placed
        elif isinstance(placed, Neuron) and threshold.change is not None:
            changes[site.owner] = threshold.change
        of_owner.roles[site.key], of_owner.calls[site.key] = threshold.role, threshold.calls
    for (owner, operation), macs in thresholds.uncovered.items():
        of_owner = plan.setdefault(owner, Neurons(owner))
        reason = ANALOG.get(operation, "excluded, no rule reaches it")  # `_check_coverage` refuses others
        of_owner[operation.replace(".", "::")] = Analog(reason, macs)  # ModuleDict keys have no dots
    for name, module in modules.items():
        if name not in plan and _multiplies(module):  # calibration never ran it: running it is an error
            plan[name] = Neurons(name)
    everywhere = [place for of_owner in plan.values() for place in of_owner.values()]
    if not any(is_spiking(place) for place in everywhere):
        raise ConversionError("convert: no site would spike. Widen include, or narrow exclude.")
    if recipe.fold_batchnorm:
        fold_(model, thresholds.folds)
    refit_(model, changes)
    round_(model, edges)
    devices = {name: device_of(modules[name]) for name in plan}
    for name, of_owner in plan.items():
        of_owner.to(devices[name]).train(model.training)
    if len(set(devices.values())) > 1:
        scale.to("cpu")  # a single number on the CPU meets tensors of any device
    attach_(model, plan, recipe.steps)
    model.extra_repr = partial(_table, model)  # type: ignore[method-assign]
    model.__dict__["_conversion"] = Conversion(thresholds, recipe)
    return model


def convert(
    model: Network, thresholds: Thresholds, recipe: Recipe | None = None, *, share_weights: bool = False
) -> Network:
    """Return a converted copy; the network itself stays unchanged.

    Args:
        model: the network that was calibrated.
        thresholds: the result of `calibrate`; for a recipe with passes, see `spike`.
        recipe: how to convert, the one of `calibrate`; the paper's by default.
        share_weights: let the copy's weights stand in the same memory, for networks that fit only once.

    >>> import torch
    >>> from onespike import calibrate, named_neurons
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> snn = convert(model, calibrate(model, [torch.randn(64, 2)]))
    >>> [f"{site} {neuron.__class__.__name__}" for site, neuron in named_neurons(snn)]
    ['0:linear0_input Analog', '2:linear0_input ScaleFire', '4:linear0_input Analog']
    """
    check_network("convert", model)
    memo: dict[int, Any] = {}
    if share_weights:
        # separate parameters on the same memory: moving or casting the copy must not move the original
        memo |= {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in model.parameters()}
        memo |= {id(b): b.detach() for b in model.buffers()}
    return convert_(copy.deepcopy(model, memo), thresholds, recipe)


def revert_(model: Network) -> Network:
    """Remove all neurons: the original network again, bit for bit."""
    if is_rounded(model):
        raise UsageError(
            "revert: this network was made for integer inference, and its weights are rounded. "
            "Revert the converted network that it was made from."
        )
    detach_(model)
    unfold_(model)
    for name in ("extra_repr", "_conversion", "save_pretrained"):  # what came with the neurons
        model.__dict__.pop(name, None)
    return model


def _owners(model: nn.Module) -> list[Neurons]:
    return [module for module in model.modules() if isinstance(module, Neurons)]


def is_rounded(model: nn.Module) -> bool:
    """Return whether a network was made for integer inference."""
    return any(neurons.weights != Neurons.weights for neurons in _owners(model))


def is_converted(model: nn.Module) -> bool:
    return bool(_owners(model))


def conversion_of(model: nn.Module) -> Conversion:
    """Return how a network was converted, with the λ that it has now."""
    conversion = model.__dict__.get("_conversion")
    if not isinstance(conversion, Conversion):
        raise UsageError(
            f"this {type(model).__name__} is not converted, or only a part of a converted network. Convert it first."
        )
    scale = _scale(model)
    if scale is None or bool(Scale(conversion.recipe.scale).value == scale.value):
        return conversion
    return Conversion(conversion.thresholds, conversion.recipe.replace(scale=float(scale.value)))


def _scale(model: nn.Module) -> Scale | None:
    return next((module for module in model.modules() if isinstance(module, Scale)), None)


def scale_of(model: nn.Module) -> Scale:
    """Return the one λ that all neurons of a converted network share."""
    if (scale := _scale(model)) is None:
        raise UsageError("this network has no neuron with a scale. Convert it first, with neuron='sfn'.")
    return scale


def steps_of(model: nn.Module) -> int:
    """Return T, the number of passes that one forward of a converted network makes."""
    return next((owner.clock.timesteps for owner in _owners(model) if owner.clock is not None), 1)


def set_scale_(model: nn.Module, scale: float) -> None:
    """Change λ of a converted network; nothing is converted or compiled again."""
    scale_of(model).set_(scale)


def table(model: nn.Module) -> list[dict[str, Any]]:
    """Return one row per site of a converted network: what spikes, its thresholds, what stays analog and why."""
    owners, rows = {neurons.owner: neurons for neurons in _owners(model)}, []
    for site, neuron in named_neurons(model):
        owner, what = owners[site.owner], neuron.extra_repr()
        what = f"analog: {what}" if isinstance(neuron, Analog) else what
        if (calls := owner.calls.get(site.key, 1)) > 1:
            what += f", shared by {calls:g} calls per forward"
        role = owner.roles.get(site.key, "")
        rows.append({"site": str(site), "role": role, "spikes": is_spiking(neuron), "neuron": what})
    return rows


def _table(model: nn.Module) -> str:
    rows = table(model)
    width = max(len(row["site"]) for row in rows)
    spiking = sum(row["spikes"] for row in rows)
    lines = [f"{row['site']:<{width}}  {row['neuron']}" for row in rows]
    return "\n".join([f"{spiking} of {len(rows)} sites spike", *lines, ""])
