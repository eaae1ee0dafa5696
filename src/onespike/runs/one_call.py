"""All stages in one call: a network and unlabeled batches → a spiking network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from onespike import recipe as recipes
from onespike.conversion.network import Network
from onespike.errors import UsageError
from onespike.passes.base import Progress, no_progress
from onespike.passes.chaining import prepare
from onespike.passes.parts import Parts
from onespike.passes.tolerance import by_labels
from onespike.recipe import Recipe
from onespike.runs.own import convert
from onespike.runtime.batches import inputs_of
from onespike.runtime.forward import check_network
from onespike.tasks import Inferred, Meaning


def spike(
    model: Network,
    batches: Iterable[Any],
    preset: str | Recipe = recipes.DEFAULT,
    *,
    share_weights: bool = False,
    progress: Progress = no_progress,
    task: Meaning | None = None,
    validation: Iterable[tuple[Any, Any]] | None = None,
    **changes: Any,
) -> Network:
    """Calibrate a network, run the recipe's passes and convert a copy; the network itself stays unchanged.

    `snn.save_pretrained(FOLDER)` keeps the copy, and `from_pretrained(FOLDER, model)` brings it back.

    Args:
        model: any network.
        batches: unlabeled inputs, as for `calibrate`; a `DataLoader` works, its labels are ignored.
        preset: a preset's name, see `onespike list presets`, or a recipe.
        share_weights: let the copy's weights use the same memory, for networks that fit only once.
        progress: progress(title, total) wraps the batches of a long stage.
        task: the meaning of the network's output, for passes; by default inferred from its form: classes for scores of
            shape (inputs, classes), numbers with noise otherwise.
        validation: (inputs, labels) that judge `max_drop` by accuracy; without them the last calibration inputs do.
        **changes: fields of the recipe that differ from the preset's.

    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> type(spike(model, torch.randn(64, 2).split(16), "sformer", scale=0.2))
    <class 'torch.nn.modules.container.Sequential'>
    """
    recipe = recipes.preset(preset, **changes) if isinstance(preset, str) else preset.replace(**changes)
    if validation is not None and recipe.max_drop is None:
        raise UsageError("validation judges max_drop, and there is none. Give for example max_drop=0.01.")
    check_network("spike", model)
    inputs: Sequence[Any] = [inputs_of(model, batch) for batch in batches]  # passes read them several times
    if recipe.passes:
        inputs = Parts(inputs, task or Inferred())
    judge = None if validation is None else by_labels(model, validation, task or Inferred())
    thresholds = prepare(
        model, inputs, inputs, recipe, total=len(inputs), progress=progress, task=task, judge=judge
    )
    return convert(model, thresholds, recipe, share_weights=share_weights)
