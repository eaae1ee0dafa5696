"""What the passes know of each site: Fisher information by position and channel, and samples of its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onespike.attach import Neurons
from onespike.calibrate import device_of
from onespike.convert import convert
from onespike.errors import UsageError
from onespike.neurons import Neuron
from onespike.passes.axes import reduced
from onespike.passes.base import Given, State
from onespike.sites import Site

FISHER_IMAGES, SAMPLED_IMAGES, HELD = 128, 64, 64
PART = 4
"""Inputs of one backward pass, so that what it keeps is small beside a forward of a whole batch."""
SAMPLES = 2**17
"""Values kept of each site, shared by the groups of its positions."""


@dataclass
class Fisher:
    """Sums over inputs at one site, by position and channel: squared gradients, |x|, and how many elements."""

    information: Tensor
    magnitude: Tensor
    elements: float
    fan_out: float

    def mean(self, kept: tuple[int, ...]) -> Tensor:
        """Fisher information of one element, by the axes kept."""
        return reduced(self.information[None], kept, "mean") / self.elements


Visit = Callable[[str, Tensor, Any], Tensor]


def probed(state: State, given: Given, visit: Visit) -> Any:
    """The original network, in which every spiking site hands its value to `visit(site, x, synapses)`."""
    model = convert(given.model, state.thresholds, state.recipe, share_weights=True)

    def meter(owner: Neurons, key: str, x: Tensor, count: Any) -> Tensor:
        return visit(str(Site(owner.owner, key)), x, count) if isinstance(owner[key], Neuron) else x

    for module in model.modules():
        if isinstance(module, Neurons):
            module.meter = meter
    return model.requires_grad_(False).eval()


def fisher(state: State, given: Given) -> dict[str, Fisher]:
    """The mean squared gradient of the log-probability of a drawn class, at each site of the original network.

    One backward pass a batch and no labels. The result is kept, since it does not depend on the thresholds.
    """
    if "fisher" in given.memory:
        kept: dict[str, Fisher] = given.memory["fisher"]
        return kept
    found: dict[str, Fisher] = {}
    axes = {site: state.axes(site) for site in state.spiking}

    def visit(site: str, x: Tensor, count: Any) -> Tensor:
        place = axes[site]
        keep = place.centre + place.step + (() if place.position is None else (place.position,))
        fan = count().fan_out
        fan = float(fan.double().mean()) if isinstance(fan, Tensor) else float(fan)
        size = reduced(x.detach().abs().double(), keep)
        row = found.setdefault(site, Fisher(torch.zeros_like(size), torch.zeros_like(size), 0.0, fan))
        if row.magnitude.shape != size.shape:
            raise UsageError(
                f"passes: {site} sees {list(row.magnitude.shape)} and then {list(size.shape)} positions and channels. "
                "Give calibration inputs of one size."
            )
        row.magnitude += size
        row.elements += x.numel() / size.numel()
        x = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()

        def add(gradient: Tensor) -> None:
            row.information += reduced(gradient.double().pow(2), keep)

        x.register_hook(add)
        return x

    model, generator = probed(state, given, visit), torch.Generator().manual_seed(given.seed)
    batches = first(given, FISHER_IMAGES)
    for batch in given.progress("sensitivity", len(batches))(batches):
        noise: Tensor | None = None
        for part, rows in zip(batch.split(PART), torch.arange(len(batch)).split(PART), strict=True):
            with torch.enable_grad():
                output = model(part.to(device_of(model)))
                output = getattr(output, "logits", output)
                if noise is None:  # p/E is largest at a class drawn from p, for E exponential
                    noise = torch.empty(len(batch), output.shape[-1]).exponential_(generator=generator)
                drawn = (output.detach().softmax(-1).cpu() / noise[rows]).argmax(-1, keepdim=True)
                output.log_softmax(-1).gather(-1, drawn.to(output.device)).sum().backward()
    given.memory["fisher"] = found
    return found


def apart(name: str, given: Given) -> tuple[range, range]:
    """The batches that a pass may learn from, and those at the end that judge it: `HELD` inputs, at most a third."""
    count = len(given.inputs)
    if count < 2:
        raise UsageError(f"the pass '{name}' needs two calibration batches at least. Give more images.")
    kept = count - max(1, min(-(-HELD // len(given.inputs[0])), count // 3))
    return range(kept), range(kept, count)


def first(given: Given, images: int) -> list[Tensor]:
    """The first so many inputs, in batches."""
    chosen, seen = [], 0
    for batch in given.inputs:
        if seen >= images:
            break
        chosen.append(batch[: images - seen])
        seen += len(batch)
    return chosen


@dataclass
class Sample:
    """Values of one group of positions of a site, rows first, and how many elements each stands for."""

    gain: float
    rows: Tensor
    weight: float
    positions: Tensor | None


def samples(state: State, given: Given) -> dict[str, list[Sample]]:
    """For each site and each group of its positions with one gain, values drawn from the original network."""
    identity = {s: None if t.gain is None else t.gain.flatten().tolist() for s, t in state.spiking.items()}
    if given.memory.get("identity") == identity:
        kept: dict[str, list[Sample]] = given.memory["samples"]
        return kept
    batches = first(given, SAMPLED_IMAGES)
    generator = torch.Generator().manual_seed(given.seed + 1)
    found: dict[str, list[tuple[float, Tensor | None, list[Tensor], list[int]]]] = {}
    axes = {site: state.axes(site) for site in state.spiking}

    def visit(site: str, x: Tensor, count: Any) -> Tensor:
        place, gain = axes[site], state.thresholds[site].gain
        groups = found.setdefault(site, [])
        if not groups:
            if gain is None or place.position is None:
                groups.append((1.0, None, [], [0]))
            else:
                flat = gain.flatten()
                for value in flat.unique().tolist():
                    groups.append((value, (flat == value).nonzero().flatten(), [], [0]))
        for _, positions, rows, seen in groups:
            part = x if place.position is None else x.movedim(place.position, 1)
            if place.position is not None:
                part = part if positions is None else part[:, positions]
                part = part.flatten(0, 1)
            seen[0] += part.numel()
            number = max(1, SAMPLES // (part[0].numel() * len(batches) * len(groups)))
            drawn = torch.randperm(len(part), generator=generator)[:number]
            chosen = part[drawn].detach().cpu()
            rows.append(chosen if place.position is None else chosen.unsqueeze(place.position))
        return x

    model = probed(state, given, visit)
    with torch.inference_mode():
        for batch in given.progress("sampling", len(batches))(batches):
            model(batch.to(device_of(model)))
    images = sum(len(batch) for batch in batches)
    result = {}
    for site, groups in found.items():
        merged = [
            (gain, positions, torch.cat(rows).clone(), seen[0]) for gain, positions, rows, seen in groups
        ]
        result[site] = [
            Sample(gain, rows, seen / rows.numel() / images, positions)
            for gain, positions, rows, seen in merged
        ]
    given.memory["identity"], given.memory["samples"] = identity, result
    return result


def information(row: Fisher, group: Sample, axis: int | None, x: Tensor) -> Tensor:
    """Fisher information of an element, by channel, of the positions of one group."""
    table = row.information / row.elements
    if axis is not None:
        chosen = table if group.positions is None else table.index_select(axis, group.positions)
        table = chosen.mean(axis, keepdim=True)
    return table.to(x.dtype)
