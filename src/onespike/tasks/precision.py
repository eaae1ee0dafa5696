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
    average_precision,
    evaluated,
    figures_of,
    pycocotools_classes,
    resampled,
)

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
    """

    def __init__(
        self, coco: Coco, results: Results, masks: bool = False, categories: Mapping[int, int] | None = None
    ) -> None:
        pycocotools_classes()
        self.coco, self.results, self.categories = coco, results, categories
        self.kinds = ("bbox", "segm") if masks else ("bbox",)
        bare = next((a for a in coco.record["annotations"] if not a.get("segmentation")), None)
        if masks and bare is not None:
            raise DataError(
                f"{coco.source}: annotation {bare['id']} of image id {bare['image_id']} has no segmentation, and masks are "
                "scored. Give annotations with masks."
            )
        self.found: dict[str, list[Result]] = {"ann": [], "snn": []}
        self.images: list[int] = []

    def update(self, ann: Any, snn: Any, labels: Tensor | None) -> None:
        """Add both networks' outputs for the images with these ids."""
        numbers = _ids(labels)
        for network, output in (("ann", ann), ("snn", snn)):
            self.found[network].extend(self.checked(output, network, numbers))
        self.images.extend(numbers)

    def merge(self, other: AveragePrecision) -> None:
        """Add what another metric has seen."""
        for network, found in other.found.items():
            self.found[network].extend(found)
        self.images.extend(other.images)

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
        for kind in self.kinds:
            evaluators = self.evaluators(kind)
            for network, evaluator in evaluators.items():
                record[network][kind], classes = figures_of(evaluator)
                for number, value in classes.items():
                    row = record["classes"].setdefault(self.coco.categories[number], {})
                    row.setdefault(network, {})[kind] = value
        ann, snn = (record[network][kind]["AP"] for network in evaluators)  # of the headline's shape
        record["difference"] = None if ann is None or snn is None else snn - ann
        record["standard_error"] = paired_error(list(evaluators.values()))
        record["objects"] = sum(a["image_id"] in set(self.images) for a in self.coco.record["annotations"])
        record["results"] = {network: len(found) for network, found in self.found.items()}
        return record


def paired_error(evaluators: Sequence[Any]) -> float | None:
    """The standard error of the difference between two networks' AP, by a bootstrap over images; None for one image."""
    gaps = [after - before for before, after in resampled(evaluators, DRAWS)]
    known = torch.tensor([gap for gap in gaps if not math.isnan(gap)], dtype=torch.float64)
    return float(known.std()) if len(known) > 1 and len(evaluators[0].params.imgIds) > 1 else None


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
        figure = average_precision(coco, self.found, kind, self.images)[0]["AP"]
        if figure is None:
            raise DataError(f"{coco.source}: the chosen images show no object. Give other images, or more.")
        return figure
