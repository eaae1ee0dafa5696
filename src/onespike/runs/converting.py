"""The verb `convert`: a loaded network and images → a pair of networks."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onespike.adapters import LoadedModel
from onespike.adapters.base import first_line
from onespike.errors import LoadError, OnespikeError, OnespikeWarning, UsageError, out_of_memory, unknown
from onespike.passes import no_progress, prepare
from onespike.passes.base import Progress
from onespike.passes.budget import spent_by
from onespike.passes.tolerance import by_labels
from onespike.recipe import Recipe
from onespike.runs.contents import digest
from onespike.runs.inputs import Inputs, batches_of, steps
from onespike.runs.own import convert
from onespike.runs.pair import NetworkPair
from onespike.runtime.batches import call, to
from onespike.runtime.devices import place_
from onespike.runtime.forward import device_of, estimate, evaluating
from onespike.runtime.processes import ALONE, Processes
from onespike.runtime.provenance import versions
from onespike.tasks import Items
from onespike.tasks.inputs import check_batch_size

DEPTHWISE = 0.2
"""Share of depthwise convolutions above which the user is told that a network needs passes."""


def convert_network(
    loaded: LoadedModel,
    items: Items,
    recipe: Recipe,
    *,
    batch_size: int = 16,
    device: str = "cpu",
    device_map: str | None = None,
    progress: Progress = no_progress,
    processes: Processes = ALONE,
    work: Path | None = None,
    validation: Items | None = None,
    told: Callable[[str], None] = lambda estimate: None,
) -> NetworkPair:
    """Calibrate a loaded network on images, apply the recipe's passes, and convert a copy of it.

    Calibration and passes cut the images into parts of their own; `batch_size` is for labeled images in `validation`,
    which judge the recipe's `max_drop`. A long pass keeps what it needs to resume in the folder `work`. What the network
    spends on the last calibration images is kept with the thresholds. Of a network in blocks, `told` is given what it
    takes before anything else is computed.
    """
    check_batch_size(batch_size)
    ann = place_(loaded.model, device, device_map)
    check_forward(loaded, ann, items, told)
    inputs = Inputs(items, loaded)
    if not recipe.passes and (share := depthwise_share(ann)) > DEPTHWISE:
        warnings.warn(
            f"{loaded.spec}: {100 * share:.0f} % of its convolutions are depthwise, and with one step for all channels and no "
            "passes such networks lose most of their accuracy. Take --preset fast.",
            OnespikeWarning,
            stacklevel=2,
        )
    judge = None
    if validation is not None:
        labeled = loaded.batches(loaded.task.named(validation), batch_size, ALONE.part)
        judge = by_labels(ann, labeled, loaded.task)
    thresholds = prepare(
        ann,
        batches_of(items, loaded, inputs.size, processes),
        inputs,
        recipe,
        total=steps(items, inputs.size, processes),
        folder=work if processes.is_main else None,
        progress=progress,
        provenance={"attention": loaded.attention, "device": device, "versions": versions()},
        processes=processes,
        task=loaded.task,
        judge=judge,
    )
    snn = convert(ann, thresholds, recipe, share_weights=True)
    if "energy" not in thresholds.provenance and processes.is_main:
        spent = spent_by(snn, inputs, recipe.energy)
        thresholds = dataclasses.replace(
            thresholds, provenance={**thresholds.provenance, "energy": spent.to_dict()}
        )
    data = {
        "source": items.source,
        "names": list(items.names),
        "sha256": [digest(item) for item in items],
    }
    return NetworkPair(loaded, ann, snn, recipe, thresholds, data)


def depthwise_share(model: nn.Module) -> float:
    """Return the share of a network's convolutions that have one filter per channel.

    >>> depthwise_share(nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8)))
    0.5
    """
    every = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    return sum(m.groups == m.in_channels > 1 for m in every) / max(len(every), 1)


def check_forward(
    loaded: LoadedModel,
    ann: nn.Module,
    items: Items,
    told: Callable[[str], None] = lambda estimate: None,
) -> None:
    """Refuse a network that fails on its own preprocessing: its configuration is wrong, and nothing of ours.

    A network in blocks goes as far as its first block, with a whole batch, to see what it takes.
    """
    first = dataclasses.replace(items, items=items.items[:1])
    try:
        with evaluating(ann), torch.inference_mode():
            found = estimate_of(loaded, ann, items)
            if found is None:
                call(ann, to(next(batches_of(first, loaded, 1)), device_of(ann)))
            else:
                told(found)
    except OnespikeError:
        raise
    except Exception as error:  # any exception of a network and its preprocessing
        if out_of_memory(error):
            raise
        raise LoadError(
            f"{loaded.spec}: the network fails on {first[0].name} after its own preprocessing "
            f"({loaded.reading.preprocessing}): {first_line(error)}. Correct its configuration."
        ) from error


def estimate_of(
    loaded: LoadedModel, ann: nn.Module, items: Items, batch_size: int | None = None
) -> str | None:
    """What a network in blocks takes for these inputs, by default in the parts of passes; None for one in memory."""
    size = Inputs(items, loaded).size if batch_size is None else batch_size

    def forward() -> Any:
        return call(ann, to(next(batches_of(items, loaded, size)), device_of(ann)))

    with evaluating(ann):
        return estimate(ann, forward, steps(items, size, ALONE))


def in_scope(recipe: Recipe, loaded: LoadedModel, scope: str) -> Recipe:
    """Return the recipe for the whole network, or for its backbone alone."""
    if scope not in ("all", "backbone"):
        raise unknown("scope", scope, ("all", "backbone"))
    if scope == "all":
        return recipe
    if not loaded.backbone:
        raise UsageError(f"{loaded.spec} has no backbone apart from the rest. Leave --scope out.")
    if recipe.include != Recipe().include:
        raise UsageError("--scope backbone and --include both say what spikes. Give one of them.")
    return recipe.replace(include=loaded.backbone)
