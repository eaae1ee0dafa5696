"""Detection and instance segmentation: COCO's AP of both networks, over all classes and for each."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from onespike.errors import DataError, LoadError
from onespike.tasks.coco import Coco

KINDS = {"detection": ("bbox",), "segmentation": ("bbox", "segm")}
"""What a task scores: boxes, or boxes and masks."""

FIGURES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
"""pycocotools' twelve figures in its order, here in percent; None where the data has no such object."""

Result = dict[str, Any]
Results = Callable[[Any, Sequence[Mapping[str, Any]]], Iterable[Result]]
"""results(output, images): a network's output for these images (their COCO records) → COCO results."""


class Detection:
    """AP, AP50, AP75 and by size for boxes (and masks), equal to pycocotools on the same predictions.

    Args:
        coco: the truth.
        results: turns a network's output and the images' COCO records into COCO results.
        task: `detection` for boxes, `segmentation` for boxes and masks.
        categories: the network's class numbers → category ids; results of other classes are dropped. None if the
            results name category ids already.
    """

    def __init__(
        self,
        coco: Coco,
        results: Results,
        task: str = "detection",
        categories: Mapping[int, int] | None = None,
    ) -> None:
        _pycocotools()
        self.coco, self.results, self.kinds, self.categories = coco, results, KINDS[task], categories
        bare = next((a for a in coco.record["annotations"] if not a.get("segmentation")), None)
        if "segm" in self.kinds and bare is not None:
            raise DataError(
                f"{coco.source}: annotation {bare['id']} of image id {bare['image_id']} has no segmentation, and masks are "
                "scored. Give annotations with masks."
            )
        self.found: dict[str, list[Result]] = {"ann": [], "snn": []}
        self.images: list[int] = []

    def take(self, output: Any) -> Any:
        """A detector's output is needed whole."""
        return output

    def update(self, ann: Any, snn: Any, labels: Tensor | None) -> None:
        """Take in both networks' outputs for the images with these ids."""
        if labels is None:
            raise DataError("these images have no ids. List them together with their annotations.")
        numbers = [int(i) for i in labels]
        for network, output in (("ann", ann), ("snn", snn)):
            self.found[network].extend(self._checked(output, network, numbers))
        self.images.extend(numbers)

    def precision(self, outputs: Iterable[tuple[Any, Tensor]]) -> float:
        """AP of the spiking network alone, by its outputs for the images with these ids: of masks, or else of boxes."""
        found: list[Result] = []
        images: list[int] = []
        for output, labels in outputs:
            numbers = [int(i) for i in labels]
            found.extend(self._checked(output, "snn", numbers))
            images.extend(numbers)
        figure = average_precision(self.coco, found, self.kinds[-1], images)[0]["AP"]
        if figure is None:
            raise DataError(
                f"{self.coco.source}: the chosen images show no object. Give other images, or more."
            )
        return figure

    def _checked(self, output: Any, network: str, numbers: list[int]) -> Iterable[Result]:
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

    def compute(self) -> dict[str, Any]:
        """`{"ann": {"bbox": {"AP", …}, "segm": {…}}, "snn": {…}, "classes": {name: {"ann": {…}, "snn": {…}}}, …}`."""
        if not self.images:
            raise DataError("no image was scored. Give at least one annotated image.")
        record: dict[str, Any] = {"ann": {}, "snn": {}, "classes": {}}
        for network, found in self.found.items():
            for kind in self.kinds:
                figures, classes = average_precision(self.coco, found, kind, self.images)
                record[network][kind] = figures
                for number, value in classes.items():
                    row = record["classes"].setdefault(self.coco.categories[number], {})
                    row.setdefault(network, {})[kind] = value
        record["objects"] = sum(a["image_id"] in set(self.images) for a in self.coco.record["annotations"])
        record["results"] = {network: len(found) for network, found in self.found.items()}
        return record


def matched(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], overlap: float = 0.5
) -> dict[int, int]:
    """Which results on one image two networks share: place in the first list → place in the second.

    Each takes the best box of the same class that is still free and covers it with this IoU at least.

    >>> cat = {"category_id": 1, "bbox": [0.0, 0.0, 4.0, 4.0]}
    >>> matched([cat], [{**cat, "category_id": 2}, {**cat, "bbox": [0.0, 0.0, 4.0, 3.0]}])
    {0: 1}
    """
    from pycocotools.mask import iou

    shared = iou([a["bbox"] for a in first], [b["bbox"] for b in second], [False] * len(second))
    pairs: dict[int, int] = {}
    for i, a in enumerate(first):
        free = [
            (shared[i][j], -j)
            for j, b in enumerate(second)
            if b["category_id"] == a["category_id"] and j not in pairs.values()
        ]
        if free and max(free)[0] >= overlap:
            pairs[i] = -max(free)[1]
    return pairs


def average_precision(
    coco: Coco, results: Sequence[Result], kind: str, images: Sequence[int]
) -> tuple[dict[str, float | None], dict[int, float | None]]:
    """pycocotools' figures for COCO results of one kind, and AP of each category that has objects, in percent."""
    evaluator = evaluated(coco, results, kind, images)
    precision = evaluator.eval["precision"]  # IoU × recall × category × area × number of detections
    classes = {}
    for place, number in enumerate(evaluator.params.catIds):
        values = precision[:, :, place, 0, -1]
        if (values > -1).any():
            classes[number] = _percent(values[values > -1].mean())
    return {name: _percent(v) for name, v in zip(FIGURES, evaluator.stats, strict=True)}, classes


def evaluated(coco: Coco, results: Sequence[Result], kind: str, images: Sequence[int]) -> Any:
    """A pycocotools evaluator that has finished its work on these images."""
    coco_class, evaluator_class = _pycocotools()
    shape = "bbox" if kind == "bbox" else "segmentation"
    # With both shapes in a result pycocotools would take a mask's area from its box.
    plain = [{k: r[k] for k in ("image_id", "category_id", "score", shape)} for r in results]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco_class()
        truth.dataset = {**coco.record, "annotations": [dict(a) for a in coco.record["annotations"]]}
        truth.createIndex()
        if plain:
            found = truth.loadRes(plain)
        else:
            found = coco_class()
            found.dataset = {**coco.record, "annotations": []}
            found.createIndex()
        evaluator = evaluator_class(truth, found, kind)
        evaluator.params.imgIds = sorted(images)
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return evaluator


def _percent(value: Any) -> float | None:
    return None if value < 0 else 100 * float(value)


def _pycocotools() -> tuple[Any, Any]:
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError as error:
        raise LoadError(
            "boxes and masks are scored with pycocotools. Install it with: pip install 'onespike[detection]'"
        ) from error
    return COCO, COCOeval
