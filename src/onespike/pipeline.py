"""The one place where the stages meet: networks, images, calibration, conversion, evaluation, runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onespike import storage
from onespike.adapters import LoadedModel, load_checkpoint_, load_model, normalisation, renormalised
from onespike.calibrate import Thresholds, calibrate
from onespike.convert import convert
from onespike.devices import check_device as check_device
from onespike.devices import place_
from onespike.energy import Ledger
from onespike.errors import DataError, UsageError, unknown
from onespike.evaluate import Evaluation, Metric, evaluate
from onespike.files import sha256
from onespike.passes import check_recipe, improve
from onespike.processes import ALONE, Processes
from onespike.recipe import Recipe
from onespike.report.plots import png
from onespike.report.predictions import predictions
from onespike.tasks import (
    SCENES,
    Classification,
    Coco,
    Detection,
    Items,
    batches,
    category_ids,
    limit,
    list_coco,
    list_images,
    read_image,
)
from onespike.verify import Verification, verify

Progress = Callable[[str, int], Callable[[Iterable[Any]], Iterable[Any]]]
"""progress(title, number of batches) wraps the batches of a long stage."""


def no_progress(title: str, total: int) -> Callable[[Iterable[Any]], Iterable[Any]]:
    return lambda batches: batches


@dataclass(frozen=True)
class Pair:
    """A network and its converted copy, with all that is needed to feed them."""

    loaded: LoadedModel
    ann: nn.Module
    snn: nn.Module
    recipe: Recipe
    thresholds: Thresholds
    data: dict[str, Any]


def choose(data: str, count: int | None) -> Items:
    """The images of a folder, or `count` of them evenly spaced."""
    items = list_coco(data)[0] if data.removeprefix("bundled:") in SCENES else list_images(data)
    return items if count is None else limit(items, count)


def _batches(
    items: Items, loaded: LoadedModel, batch_size: int, processes: Processes = ALONE
) -> Iterator[tuple[Any, Any]]:
    return batches(items, loaded.transform, batch_size, part=processes.part, collate=loaded.collate)


def _inputs(
    items: Items, loaded: LoadedModel, batch_size: int, processes: Processes = ALONE
) -> Iterator[Any]:
    return (inputs for inputs, _ in _batches(items, loaded, batch_size, processes))


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
    check_recipe(recipe)
    ann = place_(loaded.model, device, device_map)
    thresholds = calibrate(
        ann,
        _inputs(items, loaded, batch_size, processes),
        recipe,
        progress=progress("calibrating", _steps(items, batch_size, processes)),
        provenance={"attention": loaded.attention, "device": device, "versions": storage.versions()},
        processes=processes,
    )
    inputs = Inputs(items, loaded, batch_size)
    thresholds = improve(
        ann, inputs, thresholds, recipe, folder=work if processes.first else None, progress=progress
    )
    data = {
        "source": items.source,
        "names": list(items.names),
        "sha256": [digest(item) for item in items],
    }
    return Pair(loaded, ann, convert(ann, thresholds, recipe, share_weights=True), recipe, thresholds, data)


def digest(item: Any) -> str:
    """What tells whether two images are the same: the file's hash, or the name within a bundled strip."""
    return item.name if item.row is not None else sha256(item.path)


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
    loaded = _load_network(run)
    ann = place_(loaded.model, device, device_map)
    return Pair(
        loaded,
        ann,
        convert(ann, run.thresholds, run.recipe, share_weights=True),
        run.recipe,
        run.thresholds,
        run.data,
    )


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
    known = {k: run.network[k] for k in ("spec", "weights", "published_top1")}
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
    """Both networks over the images, in one pass; detectors need the metric that knows their annotations."""
    return evaluate(
        pair.ann,
        pair.snn,
        _batches(items, pair.loaded, batch_size, processes),
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
    loaded: LoadedModel, data: str, annotations: Path | None, count: int | None
) -> tuple[Items, Coco | None]:
    """Images with the labels that the network's task is scored by: of their folders, or in a COCO file."""
    if loaded.results is None:
        if annotations is not None:
            raise UsageError(f"{loaded.spec} classifies, and has no use for boxes. Leave --annotations out.")
        return choose(data, count), None
    items, coco = list_coco(data, annotations)
    return (items if count is None else limit(items, count)), coco


def metric_for(pair: Pair, items: Items, coco: Coco | None = None) -> Metric:
    """How the network's task is scored."""
    loaded = pair.loaded
    if loaded.results is None:
        _check_classes(pair, items)
        return Classification()
    if coco is None:
        raise DataError(f"{loaded.spec}: boxes are scored with annotations. Give --annotations FILE.")
    return detection(loaded, coco)


def detection(loaded: LoadedModel, coco: Coco) -> Detection:
    """How a detector is scored by these annotations."""
    if loaded.results is None:
        raise UsageError(f"{loaded.spec} classifies, and finds no boxes. Give a detector.")
    return Detection(coco, loaded.results, loaded.task, category_ids(loaded.class_names, coco.categories))


def _check_classes(pair: Pair, items: Items) -> None:
    """Named class folders are numbered by their place, which is right only if all classes are there."""
    known, found = pair.loaded.class_names, items.class_names
    if known is not None and found is not None and len(known) != len(found):
        raise DataError(
            f"{items.source}: it has {len(found)} class folders, and the network knows {len(known)} classes. "
            "Name the folders by the classes' numbers, or give a folder for every class."
        )


def overlap(used: Mapping[str, Any], items: Items) -> list[str]:
    """Images that calibration or a search has used already: what is measured on them is not a held-out figure."""
    seen = set(used.get("sha256", ()))
    return [item.name for item in items if digest(item) in seen] if seen else []


def picture(items: Items, metric: Any, count: int = 4) -> bytes:
    """What both detectors found on the first images, side by side, as PNG."""
    shown = [(read_image(item), item.id) for item in items.items[:count]]
    return png(predictions(shown, metric.found, metric.coco.categories))
