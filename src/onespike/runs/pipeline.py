"""The one place where the stages meet: networks, images, calibration, conversion, evaluation, runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onespike.adapters import LoadedModel, load_checkpoint_, load_model, normalisation, renormalised
from onespike.adapters.base import first_line
from onespike.calibration.thresholds import Thresholds
from onespike.conversion.network import convert
from onespike.energy.ledger import Ledger
from onespike.errors import LoadError, OnespikeError, UsageError, out_of_memory, unknown
from onespike.evaluation.participation import Verification, verify
from onespike.evaluation.side_by_side import Evaluation, evaluate
from onespike.passes import no_progress as no_progress
from onespike.passes import prepare
from onespike.passes.base import Progress as Progress
from onespike.recipe import Recipe
from onespike.runs import storage
from onespike.runs.contents import digest
from onespike.runtime.batches import call, to
from onespike.runtime.devices import check_device as check_device
from onespike.runtime.devices import place_
from onespike.runtime.forward import device_of, evaluating
from onespike.runtime.processes import ALONE, Processes
from onespike.runtime.validated import understood
from onespike.tasks import Items, Metric, Task, limit, unlabeled


@dataclass(frozen=True)
class Pair:
    """A network and its converted copy, with all that is needed to feed them."""

    loaded: LoadedModel
    ann: nn.Module
    snn: nn.Module
    recipe: Recipe
    thresholds: Thresholds
    data: dict[str, Any]


def choose(data: str, count: int | None, task: Task | None = None) -> Items:
    """The inputs of a folder without labels, or `count` of them evenly spaced; images if no task is given."""
    items = unlabeled(data) if task is None else task.inputs(data)
    return items if count is None else limit(items, count)


def _inputs(
    items: Items, loaded: LoadedModel, batch_size: int, processes: Processes = ALONE
) -> Iterator[Any]:
    return (inputs for inputs, _ in loaded.batches(items, batch_size, processes.part))


class Inputs(Sequence[Any]):
    """The batches of a list of images in a shuffled order, each read when it is asked for.

    Shuffled, since a folder is sorted by class, and a few batches must stand for all of them.
    """

    def __init__(self, items: Items, loaded: LoadedModel, batch_size: int) -> None:
        order = torch.randperm(len(items), generator=torch.Generator().manual_seed(0)).tolist()
        self.items = dataclasses.replace(items, items=tuple(items[i] for i in order))
        self.loaded, self.size = loaded, batch_size

    def __len__(self) -> int:
        return _steps(self.items, self.size, ALONE)

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        part = self.items.items[index * self.size : (index + 1) * self.size]
        return next(_inputs(dataclasses.replace(self.items, items=part), self.loaded, self.size))


def _steps(items: Items, batch_size: int, processes: Processes) -> int:
    """Batches of this process."""
    return len(range(processes.rank * batch_size, len(items), processes.count * batch_size))


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
) -> Pair:
    """Calibrate a loaded network on images, improve that by the recipe's passes and convert a copy of it.

    A long pass keeps what it needs to resume in the folder `work`.
    """
    ann = place_(loaded.model, device, device_map)
    check_forward(loaded, ann, items)
    thresholds = prepare(
        ann,
        _inputs(items, loaded, batch_size, processes),
        Inputs(items, loaded, batch_size),
        recipe,
        total=_steps(items, batch_size, processes),
        folder=work if processes.first else None,
        progress=progress,
        provenance={"attention": loaded.attention, "device": device, "versions": storage.versions()},
        processes=processes,
        task=loaded.task,
    )
    data = {
        "source": items.source,
        "names": list(items.names),
        "sha256": [digest(item) for item in items],
    }
    return Pair(loaded, ann, convert(ann, thresholds, recipe, share_weights=True), recipe, thresholds, data)


def check_forward(loaded: LoadedModel, ann: nn.Module, items: Items) -> None:
    """Refuse a network that fails on its own preprocessing: its configuration is wrong, and nothing of ours."""
    first = dataclasses.replace(items, items=items.items[:1])
    try:
        with evaluating(ann), torch.inference_mode():
            call(ann, to(next(_inputs(first, loaded, 1)), device_of(ann)))
    except OnespikeError:
        raise
    except Exception as error:  # whatever a network and its preprocessing may raise
        if out_of_memory(error):
            raise
        raise LoadError(
            f"{loaded.spec}: the network fails on the image {first[0].name} after its own preprocessing "
            f"({loaded.preprocessing}): {first_line(error)}. Correct its configuration."
        ) from error


def with_recipe(pair: Pair, recipe: Recipe) -> Pair:
    """The same network and thresholds, converted by another recipe."""
    snn = convert(pair.ann, pair.thresholds, recipe, share_weights=True)
    return dataclasses.replace(pair, snn=snn, recipe=recipe)


def without(items: Items, names: Iterable[str]) -> Items:
    """The images whose names are not among these."""
    dropped = set(names)
    return dataclasses.replace(items, items=tuple(item for item in items if item.name not in dropped))


def save_run(folder: Path, pair: Pair, *, reference_weights: Path | None = None) -> None:
    loaded = pair.loaded
    storage.save(
        folder,
        model=pair.ann,
        network={
            "spec": loaded.spec,
            "weights": loaded.weights,
            "attention": loaded.attention,
            "preprocessing": loaded.preprocessing,
            "published_top1": loaded.published_top1,
            **({} if loaded.replaced is None else {"normalisation": normalisation(loaded.transform)}),
        },
        recipe=pair.recipe,
        thresholds=pair.thresholds,
        data=pair.data,
        reference_weights=reference_weights,
        configuration=loaded.save_configuration,
    )


def load_run(folder: Path, *, device: str = "cpu", device_map: str | None = None) -> Pair:
    """Build a saved network and its converted copy again; the logits are the same to the bit."""
    check_device(device)
    run = storage.load(folder)
    with understood(folder, storage.REMEDY):
        loaded = _load_network(run)
        ann = place_(loaded.model, device, device_map)
        snn = convert(ann, run.thresholds, run.recipe, share_weights=True)
    return Pair(loaded, ann, snn, run.recipe, run.thresholds, run.data)


def _load_network(run: storage.Run) -> LoadedModel:
    spec, attention = run.network["spec"], run.network["attention"]
    if (run.folder / storage.CONFIGURATION).is_dir():
        spec = f"{spec.partition(':')[0]}:{run.folder / storage.CONFIGURATION}"
    if run.holds_weights:  # under the names that the network has in memory
        loaded = load_model(spec, random_weights=True, attention=attention)
        load_checkpoint_(loaded.model, run.weights_file)
    else:  # under the names that their publisher gave them
        loaded = load_model(spec, weights=run.weights_file, attention=attention)
    if given := run.network.get("normalisation"):
        loaded = renormalised(loaded, *given)
    known: dict[str, Any] = {k: run.network.get(k) for k in ("spec", "weights", "published_top1")}
    return dataclasses.replace(loaded, **known)


def verify_run(folder: Path, data: str, count: int = 8) -> Verification:
    """Whether every neuron of a saved run takes part, on a few images."""
    pair, items = load_run(folder), choose(data, count)
    return verify(pair.snn, next(_inputs(items, pair.loaded, count)))


def evaluate_pair(
    pair: Pair,
    items: Items,
    *,
    metric: Metric | None = None,
    batch_size: int = 16,
    progress: Progress = no_progress,
    title: str = "evaluating",
    processes: Processes = ALONE,
    ledger: Ledger | None = None,
) -> Evaluation:
    """Both networks over the images, in one pass."""
    items = pair.loaded.task.named(items, pair.loaded)
    return evaluate(
        pair.ann,
        pair.snn,
        pair.loaded.batches(items, batch_size, processes.part),
        metric or metric_for(pair, items),
        progress=progress(title, _steps(items, batch_size, processes)),
        processes=processes,
        ledger=ledger,
    )


def in_scope(recipe: Recipe, loaded: LoadedModel, scope: str) -> Recipe:
    """The recipe for the whole network, or for its backbone alone."""
    if scope not in ("all", "backbone"):
        raise unknown("scope", scope, ("all", "backbone"))
    if scope == "all":
        return recipe
    if not loaded.backbone:
        raise UsageError(f"{loaded.spec} has no backbone apart from the rest. Leave --scope out.")
    if recipe.include != Recipe().include:
        raise UsageError("--scope backbone and --include both say what spikes. Give one of them.")
    return recipe.replace(include=loaded.backbone)


def choose_labelled(
    loaded: LoadedModel, data: str, annotations: Path | None = None, count: int | None = None
) -> Items:
    """Inputs with what the network's task is scored by."""
    items = loaded.task.labeled(data, annotations, loaded)
    return items if count is None else limit(items, count)


def metric_for(pair: Pair, items: Items) -> Metric:
    """How the network's task is scored on these inputs."""
    return pair.loaded.task.metric(items, pair.loaded)


def overlap(used: Mapping[str, Any], items: Items) -> list[str]:
    """Images that calibration or a search has used already: what is measured on them is not a held-out figure."""
    seen = set(used.get("sha256", ()))
    return [item.name for item in items if digest(item) in seen] if seen else []
