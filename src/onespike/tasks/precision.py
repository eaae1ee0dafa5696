"""AP of both networks by pycocotools, and the error of their difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from onespike.errors import DataError
from onespike.tasks.coco import (
    Coco,
    Result,
    evaluated,
    figures_of,
    pycocotools_classes,
    resampled,
)
from onespike.tasks.intervals import Bounds, interval, known, ratio_error

DRAWS = 100
"""The number of image samples whose spread is the standard error of AP."""


Results = Callable[[Any, Sequence[Mapping[str, Any]]], Iterable[Result]]
"""results(output, images): a network's output for these images (their COCO records) → COCO results."""


class AveragePrecision:
    """AP, AP50, AP75 and by size for boxes (and masks), equal to pycocotools on the same predictions.

    Args:
        coco: the truth.
        results: turns a network's output and the images' COCO records into COCO results.
        masks: whether masks are scored as well as boxes.
        categories: the network's class numbers → category ids; results of other classes are dropped. None if the
            results name category ids already.
        apart: (original's output, spiking one's) → the divergence of each image, in nats, where there is one.
    """

    def __init__(
        self,
        coco: Coco,
        results: Results,
        masks: bool = False,
        categories: Mapping[int, int] | None = None,
        apart: Callable[[Any, Any], Iterable[float]] | None = None,
    ) -> None:
        pycocotools_classes()
        self.coco, self.results, self.categories, self.apart = coco, results, categories, apart
        self.kinds = ("bbox", "segm") if masks else ("bbox",)
        bare = next((a for a in coco.record["annotations"] if not a.get("segmentation")), None)
        if masks and bare is not None:
            raise DataError(
                f"{coco.source}: annotation {bare['id']} of image id {bare['image_id']} has no segmentation, and masks are "
                "scored. Give annotations with masks."
            )
        self.found: dict[str, list[Result]] = {"ann": [], "snn": []}
        self.images: list[int] = []
        self.unlike: list[float] = []

    def update(self, ann: Any, snn: Any, labels: Tensor | None) -> None:
        """Add both networks' outputs for the images with these ids."""
        numbers = _ids(labels)
        if self.apart is not None:
            self.unlike.extend(self.apart(ann, snn))
        for network, output in (("ann", ann), ("snn", snn)):
            self.found[network].extend(self.checked(output, network, numbers))
        self.images.extend(numbers)

    def merge(self, other: AveragePrecision) -> None:
        """Add what another metric has seen."""
        for network, found in other.found.items():
            self.found[network].extend(found)
        self.images.extend(other.images)
        self.unlike.extend(other.unlike)

    def checked(self, output: Any, network: str, numbers: list[int]) -> Iterable[Result]:
        """Return an output's results on the images with these ids, with the annotations' categories."""
        known = self.coco.categories
        for result in self.results(output, [self.coco.images[i] for i in numbers]):
            if self.categories is not None:
                if result["category_id"] not in self.categories:
                    continue
                result = {**result, "category_id": self.categories[result["category_id"]]}
            if result["category_id"] not in known or result["image_id"] not in numbers:
                raise DataError(
                    f"a result of the {network} names category {result['category_id']} in image {result['image_id']}, "
                    f"and {self.coco.source} has no such pair here. Give results the ids of the annotations."
                )
            if not math.isfinite(result["score"]):
                raise DataError(
                    f"a score of the {network} in image {result['image_id']} is not finite. "
                    "Check its weights, and this image."
                )
            yield result

    def evaluators(self, kind: str) -> dict[str, Any]:
        """Return pycocotools' evaluators of both networks, for boxes or masks."""
        return {
            network: evaluated(self.coco, found, kind, self.images) for network, found in self.found.items()
        }

    def compute(self) -> dict[str, Any]:
        """Return `{"ann": {"bbox": {"AP", …}, "segm": {…}}, "snn": {…}, "classes": {name: {"ann": {…}, "snn": {…}}}, …}`."""
        if not self.images:
            raise DataError("no image was scored. Give at least one annotated image.")
        record: dict[str, Any] = {"task": "detection", "ann": {}, "snn": {}, "classes": {}}
        bounds: dict[str, Bounds | None] = {}
        for kind in self.kinds:
            evaluators = self.evaluators(kind)
            for network, evaluator in evaluators.items():
                record[network][kind], classes = figures_of(evaluator)
                for number, value in classes.items():
                    row = record["classes"].setdefault(self.coco.categories[number], {})
                    row.setdefault(network, {})[kind] = value
            ann, snn = (record[network][kind]["AP"] for network in evaluators)
            record["difference"] = (
                None if ann is None or snn is None else snn - ann
            )  # the last shape is the headline
            errors = bootstrap_errors(list(evaluators.values()))
            record["standard_error"] = errors["difference"]
            values = {
                f"ann.{kind}.AP": ann,
                f"snn.{kind}.AP": snn,
                f"difference.{kind}": record["difference"],
            }
            for (name, value), error in zip(values.items(), errors.values(), strict=True):
                bounds[name] = None if value is None or error is None else interval(value, error)
        if self.unlike:
            record["kl"], error = (
                math.fsum(self.unlike) / len(self.unlike),
                ratio_error(self.unlike, [1.0] * len(self.unlike)),
            )
            bounds["kl"] = None if error is None else interval(record["kl"], error, least=0.0)
        record["intervals"] = known(bounds)
        record["objects"] = sum(a["image_id"] in set(self.images) for a in self.coco.record["annotations"])
        record["results"] = {network: len(found) for network, found in self.found.items()}
        return record


def bootstrap_errors(evaluators: Sequence[Any]) -> dict[str, float | None]:
    """Standard errors by a bootstrap over images: of each network's AP, and of their difference on the same images."""
    drawn = torch.tensor(list(resampled(evaluators, DRAWS)), dtype=torch.float64)
    drawn = drawn[~drawn.isnan().any(1)]
    if len(drawn) < 2 or len(evaluators[0].params.imgIds) < 2:
        return dict.fromkeys(("ann", "snn", "difference"))
    columns = {"ann": drawn[:, 0], "snn": drawn[:, -1], "difference": drawn[:, -1] - drawn[:, 0]}
    return {name: float(column.std()) for name, column in columns.items()}


def _ids(labels: Tensor | None) -> list[int]:
    if labels is None:
        raise DataError("these images have no ids. List them together with their annotations.")
    return [int(i) for i in labels]


class Precision:
    """AP of the spiking network alone: of masks, or else of boxes. It is not a sum over batches."""

    def __init__(self, metric: AveragePrecision) -> None:
        self.metric = metric
        self.found: list[Result] = []
        self.images: list[int] = []

    def update(self, expected: Any, actual: Any, labels: Tensor | None, size: int) -> None:
        """Add outputs for the images with these ids."""
        numbers = _ids(labels)
        self.found.extend(self.metric.checked(actual, "snn", numbers))
        self.images.extend(numbers)

    def value(self) -> float:
        """Return AP in percent."""
        coco, kind = self.metric.coco, self.metric.kinds[-1]
        self.evaluator = evaluated(coco, self.found, kind, self.images)
        figure = figures_of(self.evaluator)[0]["AP"]
        if figure is None:
            raise DataError(f"{coco.source}: the chosen images show no object. Give other images, or more.")
        return figure

    def interval(self) -> Bounds | None:
        """By a bootstrap over images."""
        value, error = self.value(), bootstrap_errors([self.evaluator])["snn"]
        return None if error is None else interval(value, error)
