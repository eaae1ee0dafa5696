"""How much an error at each site matters for the output, and the steps that follow from it.

For small errors the output distribution moves by Σ g·e², g the Fisher information at the site (the mean squared
gradient of the log-probability of a class drawn from the output). An error e of a step s has e² ≈ s²/12, and a spike
costs its fan-out: the sum of both is least where s³ ∝ fan-out·E|x| / g.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from onespike.attach import Neurons
from onespike.calibrate import Thresholds, device_of
from onespike.convert import convert
from onespike.neurons import Neuron
from onespike.recipe import Recipe
from onespike.sites import Site


@dataclass
class Sensitivity:
    """Sums over inputs at one site: elements, |x|, squared gradients, and the additions one spike drives."""

    elements: int = 0
    magnitude: float = 0.0
    information: float = 0.0
    fan_out: float = 0.0

    def step(self) -> float:
        """The step of the optimum, up to one factor for all sites: (fan-out·E|x| / g)^⅓."""
        mean = self.magnitude / self.elements
        information = self.information / self.elements
        return float((self.fan_out * mean / max(information, 1e-30)) ** (1 / 3))


def sensitivities(
    model: nn.Module, thresholds: Thresholds, recipe: Recipe, batches: Iterable[Tensor], seed: int = 0
) -> dict[str, Sensitivity]:
    """One backward pass for each batch through the original network, no labels."""
    probed = convert(model, thresholds, recipe, share_weights=True).requires_grad_(
        False
    )  # its own parameters
    found: dict[str, Sensitivity] = {}
    generator = torch.Generator().manual_seed(seed)

    def probe(owner: Neurons, key: str, x: Tensor, count: Any) -> Tensor:
        if not isinstance(owner[key], Neuron):
            return x
        site = Site(owner.owner, key)
        row = found.setdefault(str(site), Sensitivity())
        fan = count().fan_out
        row.fan_out = float(fan.double().mean()) if isinstance(fan, Tensor) else float(fan)
        row.elements += x.numel()
        row.magnitude += float(x.detach().abs().sum(dtype=torch.float64))
        # the hook needs a tensor of its own: one activation may enter several products
        x = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()

        def add(gradient: Tensor) -> None:
            row.information += float(gradient.double().pow(2).sum())

        x.register_hook(add)
        return x

    for module in probed.modules():
        if isinstance(module, Neurons):
            module.meter = probe
    probed.eval()
    for inputs in batches:
        with torch.enable_grad():
            output = probed(inputs.to(device_of(model)))
            output = getattr(output, "logits", output)
            drawn = torch.multinomial(output.detach().softmax(-1).cpu(), 1, generator=generator)
            output.log_softmax(-1).gather(-1, drawn.to(output.device)).sum().backward()
    return found


def factors(
    thresholds: Thresholds, found: dict[str, Sensitivity], by: str = "site", kept: float = 4.0
) -> tuple[tuple[str, float], ...]:
    """How much larger or smaller than λθ each site's step should be, as (glob, factor) pairs for a recipe.

    Softmax sites, which λ leaves alone, keep theirs.

    Args:
        thresholds: of the same network.
        found: what `sensitivities` measured.
        by: `site`, or `kind` for one factor for all sites with the same last module name and operand.
        kept: factors are held within [1/kept, kept] around their geometric mean.
    """
    drivers, logs = _drivers(thresholds), dict[str, list[float]]()
    for site, row in found.items():
        threshold = thresholds[site]
        if threshold.role == "softmax" or not row.elements:
            continue
        # an operand that does not drive costs nothing in the ledger, but a finer one is not free on a chip
        shared = row if site in drivers else replace(row, fan_out=row.fan_out / 4)
        theta = float(max(threshold.positive.max(), threshold.negative.max()))
        logs.setdefault(kind(site) if by == "kind" else site, []).append(math.log(shared.step() / theta))
    every = [value for group in logs.values() for value in group]
    middle, limit = sum(every) / max(len(every), 1), math.log(kept)
    return tuple(
        (glob, math.exp(max(-limit, min(limit, sum(group) / len(group) - middle))))
        for glob, group in logs.items()
    )


def kind(site: str) -> str:
    """`blocks.3.mlp.fc1:linear0_input` → `*fc1:linear0_input`."""
    parsed = Site.parse(site)
    return f"*{parsed.owner.rpartition('.')[2]}:{parsed.key}"


def _drivers(thresholds: Thresholds) -> set[str]:
    first: dict[str, str] = {}
    for site in thresholds:
        first.setdefault(Site.parse(site).product, site)
    return set(first.values())
