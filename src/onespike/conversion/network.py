"""Conversion: model + thresholds + recipe → a network whose products receive spikes."""

import copy
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from onespike.calibration.thresholds import EDGES, Merging, SiteThreshold, Thresholds, calibrated_by
from onespike.conversion.attach import attach_, detach_
from onespike.conversion.firing import Analog, Neurons, is_spiking, named_neurons, owners_of
from onespike.conversion.merging import attach_merging_, detach_merging_
from onespike.conversion.weights import fold_, refit_, round_, unfold_, unrounded
from onespike.errors import ConversionError, UsageError
from onespike.neurons import NEURONS, EightBit, Neuron, Scale
from onespike.recipe import Recipe
from onespike.runtime.forward import check_network, device_of
from onespike.sites import Site
from onespike.sites.coverage import ANALOG
from onespike.spikes.code import few_digits

Network = TypeVar("Network", bound=nn.Module)

REASONS = {
    "input": "input of the network",
    "head": "input of the output layer",
    "weight": "plays a weight: the same for every input",
    "constant": "constant over calibration",
}
LOOKUPS = (nn.Embedding, nn.EmbeddingBag, NonDynamicallyQuantizableLinear)
"""Modules with a weight and without a product (the output map of torch's attention never runs)."""


@dataclass(frozen=True)
class Conversion:
    """How a network was converted: what it takes, beside the original, to convert it again."""

    thresholds: Thresholds
    recipe: Recipe

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
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
    calibrated = (threshold.positive, threshold.negative)
    fixed = (sides for glob, *sides in recipe.fixed if fnmatchcase(str(threshold.site), glob))
    sides = next(([torch.tensor(float(side)) for side in given] for given in fixed), calibrated)
    shared = scale if kind.scaled and threshold.role != "softmax" else None
    lambda_, thresholds = 1.0 if shared is None else float(shared.value), []
    for side in sides:
        if bool((side > 0).any()) and not bool((side * factor * lambda_ > 0).any()):
            raise UsageError(
                f"convert: the step of {threshold.site}, {lambda_:g} times its threshold {float(side.max()):g} times "
                f"the factor {factor:g}, is 0 in float32. Give a larger scale or factor."
            )
        if recipe.step_digits:  # near by, the reciprocal of the step has a few binary digits; off stays off
            reciprocal = few_digits(1 / (side.double() * (factor * lambda_)), recipe.step_digits)
            side = torch.where(side > 0, 1 / reciprocal / (factor * lambda_), 0.0).to(side.dtype)
        thresholds.append(side * factor)
    rounding = threshold.rounding or recipe.rounding
    return kind(*thresholds, levels=threshold.levels, rounding=rounding, scale=shared, **threshold.constants)


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
    products = thresholds.uncovered.items()
    unknown = {p: macs for p, macs in products if p[1] not in ANALOG and not recipe.excludes(":".join(p))}
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


def _check_recipe(thresholds: Thresholds, recipe: Recipe) -> None:
    """Refuse a recipe with other passes or another calibration: the result would be another network."""
    missing = [name for name in recipe.passes if name not in thresholds.passes]
    if missing:
        raise UsageError(
            f"convert: the recipe has the passes {', '.join(missing)}, and the thresholds have not been through them. "
            "Do all of it with onespike.spike(model, batches, recipe), or convert with recipe.replace(passes=(), budget=None, max_drop=None)."
        )
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
    _check_recipe(thresholds, recipe)
    if is_converted(model):
        raise ConversionError("convert: this network is converted already. Call revert_ on it first.")
    _check_coverage(thresholds, recipe)
    _check_globs(thresholds, recipe)
    scale, plan, modules = Scale(recipe.scale), dict[str, Neurons](), dict(model.named_modules())
    changes, edges = dict[str, Tensor](), dict[str, EightBit]()
    for site, threshold in thresholds.items():
        if site.is_activation and recipe.placement == "synapse":
            continue
        owner = site.owner
        if owner not in modules:
            raise ConversionError(
                f"convert: the thresholds name {site}, and the network has no module {owner!r}. "
                "Calibrate this very network."
            )
        if hasattr(modules[owner], "neurons"):
            raise ConversionError(
                f"convert: {owner or 'the network itself'} has an attribute 'neurons' of its own. Rename it."
            )
        placed = _placed(threshold, recipe, scale, modules[owner])
        placed.site, placed.role, placed.calls = site, threshold.role, threshold.calls
        plan.setdefault(owner, Neurons(owner))[site.key] = placed
        if isinstance(placed, EightBit):
            edges[owner] = placed
        elif isinstance(placed, Neuron) and threshold.change is not None:
            changes[owner] = threshold.change
    for (owner, operation), macs in thresholds.uncovered.items():
        reason = ANALOG.get(operation, "excluded, no rule reaches it")  # `_check_coverage` refuses others
        site, analog = Site(owner, operation.replace(".", "::")), Analog(reason, macs)  # keys have no dots
        plan.setdefault(owner, Neurons(owner))[site.key], analog.site = analog, site
    for name, module in modules.items():
        weight = None if isinstance(module, LOOKUPS) else module._parameters.get("weight")
        if name not in plan and weight is not None and weight.dim() > 1 and not hasattr(module, "neurons"):
            plan[name] = Neurons(name)  # a product that calibration never ran: running it is an error
    if not any(is_spiking(place) for of_owner in plan.values() for place in of_owner.values()):
        raise ConversionError("convert: no site would spike. Widen include, or narrow exclude.")
    if recipe.fold_batchnorm:
        fold_(model, thresholds.folds)
    refit_(model, changes)
    round_(model, edges)
    for name, of_owner in plan.items():
        of_owner.to(device_of(modules[name])).train(model.training)
    if len({device_of(modules[name]) for name in plan}) > 1:
        scale.to("cpu")  # a single number on the CPU meets tensors of any device
    attach_(model, plan, recipe.steps)
    if thresholds.merging is not None:
        attach_merging_(model, thresholds.merging.pairs)
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
    detach_merging_(model)
    detach_(model)
    unfold_(model)
    for name in ("extra_repr", "_conversion", "save_pretrained"):  # what came with the neurons
        model.__dict__.pop(name, None)
    return model


def is_rounded(model: nn.Module) -> bool:
    """Return whether a network was made for integer inference."""
    return any(owner.weights != Neurons.weights for owner in owners_of(model))


def is_converted(model: nn.Module) -> bool:
    return bool(owners_of(model))


def conversion_of(model: nn.Module) -> Conversion:
    """Return how a network was converted, with the λ that it has now."""
    conversion = model.__dict__.get("_conversion")
    if not isinstance(conversion, Conversion):
        raise UsageError(
            f"this {type(model).__name__} is not converted, or only a part of a converted network. Convert it first."
        )
    for scale in (module for module in model.modules() if isinstance(module, Scale)):
        if scale.value != Scale(conversion.recipe.scale).value:
            return replace(conversion, recipe=conversion.recipe.replace(scale=float(scale.value)))
    return conversion


def merging_of(model: nn.Module) -> Merging | None:
    """Return which blocks of a converted network merge tokens, if any do."""
    conversion = model.__dict__.get("_conversion")
    return conversion.thresholds.merging if isinstance(conversion, Conversion) else None


def scale_of(model: nn.Module) -> Scale:
    """Return the one λ that all neurons of a converted network share."""
    for module in model.modules():
        if isinstance(module, Scale):
            return module
    raise UsageError("this network has no neuron with a scale. Convert it first, with neuron='sfn'.")


def steps_of(model: nn.Module) -> int:
    """Return T, the number of passes that one forward of a converted network makes."""
    return next((owner.clock.timesteps for owner in owners_of(model) if owner.clock is not None), 1)


def set_scale_(model: nn.Module, scale: float) -> None:
    """Change λ of a converted network; nothing is converted or compiled again."""
    scale_of(model).set_(scale)


def table(model: nn.Module) -> list[dict[str, Any]]:
    """Return one row per site of a converted network: what spikes, its thresholds, what stays analog and why."""
    rows = []
    for site, neuron in named_neurons(model):
        what = ("analog: " if isinstance(neuron, Analog) else "") + neuron.extra_repr()
        if neuron.calls > 1:
            what += f", shared by {neuron.calls:g} calls per forward"
        rows.append({"site": str(site), "role": neuron.role, "spikes": is_spiking(neuron), "neuron": what})
    return rows


def _table(model: nn.Module) -> str:
    rows = table(model)
    width = max(len(row["site"]) for row in rows)
    lines = [f"{row['site']:<{width}}  {row['neuron']}" for row in rows]
    return "\n".join([f"{sum(row['spikes'] for row in rows)} of {len(rows)} sites spike", *lines, ""])
