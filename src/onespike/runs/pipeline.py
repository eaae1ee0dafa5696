"""The one pipeline: a network and unlabeled inputs → calibration, passes, a spiking copy, and its figures."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from onespike.adapters import LoadedModel
from onespike.calibration.inputs import Inputs, Parts, batch_count, batches_of
from onespike.calibration.stream import calibrate
from onespike.conversion.network import Network, conversion_of
from onespike.energy.ledger import Ledger
from onespike.errors import LoadError, OnespikeError, UsageError, first_line, out_of_memory
from onespike.evaluation.side_by_side import Evaluation, evaluate
from onespike.passes import check_recipe, improve
from onespike.passes.budget import by_labels, spent_by
from onespike.presets import DEFAULT
from onespike.recipe import Recipe
from onespike.recipe import preset as preset_recipe
from onespike.runs.inputs import digest
from onespike.runs.pair import NetworkPair, convert
from onespike.runtime.batches import call, inputs_of, to
from onespike.runtime.devices import place_
from onespike.runtime.forward import check_network, device_of, estimate, evaluating, in_order
from onespike.runtime.processes import ALONE, Processes
from onespike.runtime.progress import note, progress
from onespike.runtime.provenance import versions
from onespike.tasks import Inferred, Items, Meaning, Metric
from onespike.tasks.inputs import check_batch_size


def spike(
    model: Network,
    batches: Iterable[Any],
    preset: str | Recipe = DEFAULT,
    *,
    share_weights: bool = False,
    task: Meaning | None = None,
    validation: Iterable[tuple[Any, Any]] | None = None,
    folder: Path | None = None,
    processes: Processes = ALONE,
    provenance: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Network:
    """Calibrate a network, run the recipe's passes and convert a copy; the network itself stays unchanged.

    `snn.save_pretrained(FOLDER)` keeps the copy, and `from_pretrained(FOLDER, model)` brings it back.

    Args:
        model: any network.
        batches: unlabeled inputs, as for `calibrate`; a `DataLoader` works, its labels are ignored.
        preset: a preset's name, see `onespike list presets`, or a recipe.
        share_weights: let the copy's weights use the same memory, for networks that fit only once.
        task: the meaning of the network's output, for passes; by default inferred from its form: classes for scores of
            shape (inputs, classes), numbers with noise otherwise.
        validation: (inputs, labels) that judge `max_drop` by accuracy; without them the last calibration inputs do.
        folder: where a long pass keeps what it needs to resume.
        processes: the processes that share the calibration.
        provenance: facts about the inputs, to be kept with the thresholds.
        **changes: fields of the recipe that differ from the preset's.
    """
    recipe = preset_recipe(preset, **changes) if isinstance(preset, str) else preset.replace(**changes)
    if validation is not None and recipe.max_drop is None:
        raise UsageError("validation judges max_drop, and there is none. Give for example max_drop=0.01.")
    check_network("spike", model)
    check_recipe(recipe, model)
    stream: Iterable[Any]
    inputs: Sequence[Any]
    if isinstance(batches, Inputs):
        inputs, stream = batches, batches.stream(processes)
        total = batch_count(batches.items, batches.size, processes)
    else:
        inputs = [inputs_of(model, batch) for batch in batches]  # passes read them several times
        if recipe.passes:
            inputs = Parts(inputs, task or Inferred())
        stream, total = inputs, len(inputs)
    judge = None if validation is None else by_labels(model, validation, task or Inferred())
    bar = progress("calibrating", total)
    with in_order(model):
        thresholds = calibrate(model, bar(stream), recipe, provenance=provenance, processes=processes)
    thresholds = improve(model, inputs, thresholds, recipe, folder=folder, task=task, judge=judge)
    return convert(model, thresholds, recipe, share_weights=share_weights)


def convert_network(
    loaded: LoadedModel,
    items: Items,
    recipe: Recipe,
    *,
    batch_size: int = 16,
    device: str = "cpu",
    device_map: str | None = None,
    processes: Processes = ALONE,
    work: Path | None = None,
    validation: Items | None = None,
) -> NetworkPair:
    """`spike` for a loaded network and a list of images: the pair of both networks, and what it was made from.

    Calibration and passes cut the images into parts of their own; `batch_size` is for labeled images in `validation`,
    which judge the recipe's `max_drop`. A long pass keeps what it needs to resume in the folder `work`. What the network
    spends on the last calibration images is kept with the thresholds.
    """
    check_batch_size(batch_size)
    recipe = _of_backbone(recipe, loaded)
    ann, inputs = place_(loaded.model, device, device_map), Inputs(items, loaded)
    check_recipe(recipe, ann)
    check_forward(ann, inputs)
    labeled = None if validation is None else loaded.batches(loaded.task.named(validation), batch_size)
    snn = spike(
        ann,
        inputs,
        recipe,
        share_weights=True,
        task=loaded.task,
        validation=labeled,
        folder=work if processes.is_main else None,
        processes=processes,
        provenance={"attention": loaded.attention, "device": device, "versions": versions()},
    )
    thresholds = conversion_of(snn).thresholds
    if "energy" not in thresholds.provenance and processes.is_main:
        energy = spent_by(snn, inputs, recipe.energy).to_dict()
        thresholds = dataclasses.replace(thresholds, provenance={**thresholds.provenance, "energy": energy})
    data = {"source": items.source, "names": list(items.names), "sha256": [digest(item) for item in items]}
    return NetworkPair(loaded, ann, snn, recipe, thresholds, data)


def check_forward(ann: nn.Module, inputs: Inputs) -> None:
    """Refuse a network that fails on its own preprocessing: its configuration is wrong, and nothing of ours.

    A network in blocks goes as far as its first block, with a whole batch, to see what it takes.
    """
    loaded = inputs.loaded
    try:
        with evaluating(ann):
            if not note_blocks(ann, inputs):
                call(ann, to(inputs.one(), device_of(ann)))
    except OnespikeError:
        raise
    except Exception as error:  # any exception of a network and its preprocessing
        if out_of_memory(error):
            raise
        raise LoadError(
            f"{loaded.spec}: the network fails on {inputs.items[0].name} after its own preprocessing "
            f"({loaded.reading.preprocessing}): {first_line(error)}. Correct its configuration."
        ) from error


def note_blocks(ann: nn.Module, inputs: Inputs, batch_size: int | None = None) -> bool:
    """Note what a network in blocks takes for these inputs, by default in the parts of passes; return whether it is one."""
    size = batch_size or inputs.size

    def forward() -> Any:
        return call(ann, to(next(batches_of(inputs.items, inputs.loaded, size)), device_of(ann)))

    with evaluating(ann):
        cost = estimate(ann, forward, batch_count(inputs.items, size))
    if cost is not None:
        note(f"blocks         {cost}")
    return cost is not None


def _of_backbone(recipe: Recipe, loaded: LoadedModel) -> Recipe:
    """Return the recipe with the sites of a detector's backbone in place of `include=backbone`."""
    if "backbone" not in recipe.include:
        return recipe
    if len(recipe.include) > 1:
        raise UsageError("include='backbone' and other globs of include both say what spikes. Give one.")
    if not loaded.backbone:
        raise UsageError(f"{loaded.spec} has no backbone apart from the rest. Leave include='backbone' out.")
    return recipe.replace(include=loaded.backbone)


def evaluate_pair(
    pair: NetworkPair,
    items: Items,
    *,
    metric: Metric | None = None,
    batch_size: int = 16,
    title: str = "evaluating",
    processes: Processes = ALONE,
    ledger: Ledger | None = None,
) -> Evaluation:
    """Evaluate both networks over the images, in one pass."""
    items = pair.loaded.task.named(items)
    bar = progress(title, batch_count(items, batch_size, processes))
    batches = bar(pair.loaded.batches(items, batch_size, processes.part))
    metric = metric or pair.loaded.task.metric(items)
    return evaluate(pair.ann, pair.snn, batches, metric, processes=processes, ledger=ledger)
