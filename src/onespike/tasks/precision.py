"""AP of both networks by pycocotools, and the error of their difference."""

from __future__ import annotations

import contextlib
import copy
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from onespike.errors import DataError, require
from onespike.tasks.base import NETWORKS, Score
from onespike.tasks.coco import Coco
from onespike.tasks.intervals import Bounds, certain, interval, mean_error

DRAWS = 100  # the number of image samples whose spread is the standard error of AP
FIGURES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
"""pycocotools' twelve figures in its order, here in percent; None where the data has no such object."""

Result = dict[str, Any]
Results = Callable[[Any, Sequence[Mapping[str, Any]]], Iterable[Result]]
"""results(output, images): a network's output for these images (their COCO records) → COCO results."""


def figures_of(evaluator: Any) -> tuple[dict[str, float | None], dict[int, float]]:
    """Return the figures of a finished evaluator: of all categories, and AP of each with objects, in percent."""
    precision = evaluator.eval["precision"]  # IoU × recall × category × area × number of detections
    cells = {number: precision[:, :, i, 0, -1] for i, number in enumerate(evaluator.params.catIds)}
    classes = {number: 100 * float(x[x > -1].mean()) for number, x in cells.items() if (x > -1).any()}
    values = (None if value < 0 else 100 * float(value) for value in evaluator.stats)
    return dict(zip(FIGURES, values, strict=True)), classes


def evaluated(coco: Coco, results: Sequence[Result], kind: str, images: Sequence[int]) -> Any:
    """Return a pycocotools evaluator that has finished these images."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def indexed(annotations: list[Any]) -> Any:
        index = COCO()
        index.dataset = {**coco.record, "annotations": annotations}
        index.createIndex()
        return index

    shape = "bbox" if kind == "bbox" else "segmentation"
    # With both shapes in a result pycocotools would take a mask's area from its box.
    plain = [{k: r[k] for k in ("image_id", "category_id", "score", shape)} for r in results]
    with contextlib.redirect_stdout(io.StringIO()):
        # Numbered from 1: pycocotools reads the id 0 as "no match".
        truth = indexed([{**a, "id": n} for n, a in enumerate(coco.record["annotations"], 1)])
        evaluator = COCOeval(truth, truth.loadRes(plain) if plain else indexed([]), kind)
        evaluator.params.imgIds = sorted(images)
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return evaluator


def resampled(evaluators: Sequence[Any], draws: int) -> Iterator[list[float]]:
    """Return AP of each evaluator on images drawn with replacement, the same images for all: a paired bootstrap."""
    import numpy

    copies, random = [], numpy.random.default_rng(0)
    for evaluator in evaluators:
        copied = copy.copy(evaluator)
        settings = copied.params = copied._paramsEval = copy.deepcopy(evaluator.params)
        shape = len(settings.catIds), len(settings.areaRng), len(settings.imgIds)
        cells = numpy.array(evaluator.evalImgs, dtype=object).reshape(shape)[:, 0]
        settings.areaRng, settings.areaRngLbl = settings.areaRng[:1], settings.areaRngLbl[:1]
        settings.maxDets, settings.imgIds = settings.maxDets[-1:], list(range(shape[2]))
        copies.append((copied, cells))
    for _ in range(draws):
        chosen = random.integers(0, shape[2], shape[2])
        figures = []
        for copied, cells in copies:
            copied.evalImgs = cells[:, chosen].flatten().tolist()
            with contextlib.redirect_stdout(io.StringIO()):
                copied.accumulate()
            precision = copied.eval["precision"][copied.eval["precision"] > -1]
            figures.append(100 * float(precision.mean()) if len(precision) else math.nan)
        yield figures


def bootstrap_errors(evaluators: Sequence[Any]) -> dict[str, float | None]:
    """Standard errors by a bootstrap over images: of each network's AP, and of their difference on the same images."""
    drawn = torch.tensor(list(resampled(evaluators, DRAWS)), dtype=torch.float64)
    drawn = drawn[~drawn.isnan().any(1)]
    if len(drawn) < 2 or len(evaluators[0].params.imgIds) < 2:
        return dict.fromkeys(("ann", "snn", "difference"))
    columns = {"ann": drawn[:, 0], "snn": drawn[:, -1], "difference": drawn[:, -1] - drawn[:, 0]}
    return {name: float(column.std()) for name, column in columns.items()}


class AveragePrecision:
    """AP, AP50, AP75 and by size for boxes (and masks), equal to pycocotools on the same predictions.

    `results` are of a network's output and the images' COCO records. `categories` turn its class numbers into category
    ids and drop others; None if results name ids. `apart` is the divergence of each image of two outputs, in nats.
    """

    def __init__(
        self,
        coco: Coco,
        results: Results,
        masks: bool = False,
        categories: Mapping[int, int] | None = None,
        apart: Callable[[Any, Any], Tensor] | None = None,
    ) -> None:
        require("pycocotools", "detection", coco.source)
        self.coco, self.results, self.categories, self.apart = coco, results, categories, apart
        self.kinds = ("bbox", "segm") if masks else ("bbox",)
        bare = next((a for a in coco.record["annotations"] if not a.get("segmentation")), None)
        if masks and bare is not None:
            raise DataError(
                f"{coco.source}: annotation {bare['id']} of image id {bare['image_id']} has no segmentation, and masks are "
                "scored. Give annotations with masks."
            )
        self.predictions: dict[str, list[Result]] = {"ann": [], "snn": []}
        self.images: list[int] = []
        self.unlike: list[float] = []

    def update(self, ann: Any, snn: Any, labels: Tensor | None) -> None:
        """Add both networks' outputs for the images with these ids; without the original's, figures are of the other."""
        if labels is None:
            raise DataError("these images have no ids. List them together with their annotations.")
        numbers = [int(i) for i in labels]
        if self.apart is not None and ann is not None:
            with torch.no_grad():
                self.unlike += self.apart(ann, snn).tolist()
        for network, output in (("ann", ann), ("snn", snn)):
            if output is not None:
                self.predictions[network] += self.checked(output, network, numbers)
        self.images += numbers

    def merge(self, other: AveragePrecision) -> None:
        for network, results in other.predictions.items():
            self.predictions[network] += results
        self.images += other.images
        self.unlike += other.unlike

    def checked(self, output: Any, network: str, numbers: list[int]) -> Iterable[Result]:
        """Return an output's results on the images with these ids, with the annotations' categories."""
        categories = self.coco.categories
        for result in self.results(output, [self.coco.images[i] for i in numbers]):
            image, number = result["image_id"], result["category_id"]
            category = number if self.categories is None else self.categories.get(number)
            if category is None:
                continue
            if category not in categories or image not in numbers:
                raise DataError(
                    f"a result of the {network} names category {number} in image {image}, "
                    f"and {self.coco.source} has no such pair here. Give results the ids of the annotations."
                )
            if not math.isfinite(result["score"]):
                raise DataError(
                    f"a score of the {network} in image {image} is not finite. Check its weights, and this image."
                )
            yield {**result, "category_id": category}

    def compute(self) -> dict[str, Any]:
        """Return `{"ann": {"bbox": {"AP", …}, "segm": {…}}, "snn": {…}, "classes": {name: {"ann": {…}, "snn": {…}}}, …}`."""
        record: dict[str, Any] = {"task": "detection", "ann": {}, "snn": {}, "classes": {}}
        bounds: dict[str, Bounds | None] = {}
        for kind in self.kinds:  # the last is the headline
            evaluators = []
            for network, results in self.predictions.items():
                evaluators.append(evaluated(self.coco, results, kind, self.images))
                record[network][kind], classes = figures_of(evaluators[-1])
                for number, value in classes.items():
                    row = record["classes"].setdefault(self.coco.categories[number], {})
                    row.setdefault(network, {})[kind] = value
            errors = bootstrap_errors(evaluators)
            ann, snn = (record[network][kind]["AP"] for network in NETWORKS)
            record["difference"] = None if ann is None or snn is None else snn - ann
            record["standard_error"] = errors["difference"]
            bounds |= {
                f"ann.{kind}.AP": interval(ann, errors["ann"]),
                f"snn.{kind}.AP": interval(snn, errors["snn"]),
                f"difference.{kind}": interval(record["difference"], errors["difference"]),
            }
        if self.unlike:
            record["kl"] = math.fsum(self.unlike) / len(self.unlike)
            bounds["kl"] = interval(record["kl"], mean_error(self.unlike), least=0.0)
        record["intervals"], images = certain(bounds), set(self.images)
        record["objects"] = sum(a["image_id"] in images for a in self.coco.record["annotations"])
        record["results"] = {network: len(results) for network, results in self.predictions.items()}
        return record


class Precision(Score):
    """AP of the spiking network alone: of masks, or else of boxes. It is not a sum over batches."""

    def __init__(self, metric: AveragePrecision) -> None:
        self.metric = metric

    def update(self, expected: Any, actual: Any, labels: Tensor | None, size: int) -> None:
        self.metric.update(None, actual, labels)

    def value(self) -> float:
        metric = self.metric
        evaluator = evaluated(metric.coco, metric.predictions["snn"], metric.kinds[-1], metric.images)
        figure = figures_of(evaluator)[0]["AP"]
        if figure is None:
            raise DataError(f"{metric.coco.source}: the chosen images show no object. Give others, or more.")
        return figure
