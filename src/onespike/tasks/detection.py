"""Detection and instance segmentation: objects that are present or not, with boxes, perhaps masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from onespike.errors import DataError, UsageError
from onespike.runtime.figures import picture, png
from onespike.tasks.base import (
    NETWORKS,
    Drawing,
    Metric,
    Objective,
    Task,
    divergence,
    refusals,
    sources,
    task,
)
from onespike.tasks.coco import Coco, category_ids, list_coco, unlabeled
from onespike.tasks.images import read_image
from onespike.tasks.inputs import Item, Items
from onespike.tasks.intervals import beside, bounds_of, change, span
from onespike.tasks.objects import Objects, drawn, paired, parted, unlike
from onespike.tasks.pictures import SMALLEST_SCORE, panel, predictions
from onespike.tasks.precision import AveragePrecision, Precision, Results
from onespike.tasks.summaries import Figure, Headline, Summary, Table, decimal

SHAPES = {"bbox": "box", "segm": "mask"}
COLUMNS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR100")
PICTURED = 4


@task
@dataclass(frozen=True)
class Detection(Task):
    """A network that finds objects.

    Attributes:
        results: its output and the images' COCO records → COCO results, with the network's class numbers.
        objects: its output → per image `scores`, `labels`, `boxes` and perhaps `masks` as tensors with gradients.
        masks: whether masks are scored as well as boxes.
        class_names: one name per class, if known.
    """

    results: Results
    objects: Callable[[Any], Sequence[Objects]]
    masks: bool = False
    class_names: tuple[str, ...] | None = None

    name = "detection"
    bundled = ("bundled:scenes-calibration", "bundled:scenes-test")
    cannot = refusals(
        "finds objects",
        "generate",
        "tasks",
        calibrate="a detector searches λ on annotated images, and takes them from data=. Leave calibrate= out.",
        compile="search: the objects that a detector finds differ in number, and it cannot be compiled as a whole. "
        "Leave compile= out.",
    )

    @property
    def objectives(self) -> Mapping[str, Objective]:
        return {
            "ap": Objective(
                f"{SHAPES['segm' if self.masks else 'bbox']} AP, %",
                lambda items: Precision(self.metric(items)),
                labeled=True,
                partial=False,
            ),
            "kl": divergence(self),
        }

    def _pairs(self, expected: Any, actual: Any) -> Iterator[tuple[Objects, Objects]]:
        return zip(self.objects(expected), self.objects(actual), strict=True)

    def drawing(self, size: int, generator: Generator) -> Drawing:
        """Sample objects with the probability of their score, boxes and masks with noise: see `objects`."""
        sources_of = sources(size, generator)

        def log_probability(output: Any, places: Tensor) -> Tensor:
            each = zip(self.objects(output), sources_of(places), strict=True)
            return torch.stack([drawn(objects, source) for objects, source in each]).sum()

        return log_probability

    def divergence(self, expected: Any, actual: Any) -> Tensor:
        """Return KL of scores, boxes and masks of the objects that both networks find, and of those that one finds."""
        return torch.stack([unlike(*pair) for pair in self._pairs(expected, actual)]).sum()

    def lost(self, expected: Any, actual: Any) -> Tensor:
        """Return the share of objects with a score of at least 0.3 that only one network finds."""
        counts = [
            sum(int((one["scores"] >= SMALLEST_SCORE).sum()) for one in pair)
            for pair in self._pairs(expected, actual)
        ]
        return self.differences(expected, actual) / torch.tensor(counts).clamp(min=1)

    def differences(self, expected: Any, actual: Any) -> Tensor:
        """Return the number of objects with a score of at least 0.3 that only one network finds."""
        return torch.tensor([float(parted(*p, SMALLEST_SCORE)) for p in self._pairs(expected, actual)])

    def inputs(self, source: str) -> Items:
        return unlabeled(source)

    def labeled(self, source: str, annotations: Path | None) -> Items:
        return list_coco(source, annotations)[0]

    def objective(self, items: Items) -> str:
        """Return AP, or KL without annotations."""
        return "kl" if items.truth is None else "ap"

    def metric(self, items: Items) -> AveragePrecision:
        coco = items.truth
        if not isinstance(coco, Coco):
            raise DataError(f"{items.source}: boxes are scored with annotations. Give annotations=FILE.")
        ids = category_ids(self.class_names, coco.categories)
        return AveragePrecision(coco, self.results, self.masks, ids, self._apart)

    def _apart(self, expected: Any, actual: Any) -> list[float]:
        """The divergence of each image."""
        with torch.no_grad():
            return [float(unlike(*pair)) for pair in self._pairs(expected, actual)]

    def example(self, item: Item, ann: Any, snn: Any, items: Items) -> dict[str, Any]:
        """Return pictures of both networks' boxes and masks from a score of 0.3, and the boxes that only one has."""
        metric = self.metric(items)
        names, number = metric.coco.categories, int(item.id or 0)
        results = {
            key: sorted(
                (r for r in metric.checked(output, key, [number]) if r["score"] >= SMALLEST_SCORE),
                key=lambda r: -r["score"],
            )
            for key, output in (("ann", ann), ("snn", snn))
        }
        ours, theirs = (set(i.tolist()) for i in paired(*map(_as_objects, results.values())))
        results["lost"] = [r for i, r in enumerate(results["ann"]) if i not in ours]
        results["new"] = [r for i, r in enumerate(results["snn"]) if i not in theirs]
        listed = {key: [[names[r["category_id"]], r["score"]] for r in rows] for key, rows in results.items()}
        image = read_image(item)
        return {
            "label": f"truth {_truth(metric.coco, number)}",
            "agree": not results["lost"] and not results["new"],
            "pictures": {
                title: picture(panel(image, results[key], names)) for key, title in NETWORKS.items()
            },
            **listed,
            "text": [_in_words(listed)],
        }

    def picture(self, items: Items, metric: Metric) -> bytes:
        """Draw what both networks find on the first images, side by side."""
        if not isinstance(metric, AveragePrecision):
            raise UsageError("a picture needs the metric that has seen the images. Evaluate them first.")
        images = [(read_image(item), item.id) for item in items.items[:PICTURED]]
        return png(predictions(images, metric.predictions, metric.coco.categories))

    @staticmethod
    def summary(evaluation: Mapping[str, Any], published: float | None = None) -> Summary:
        """Summarize COCO's figures of both networks, and AP per class."""
        shapes, images, objects = (evaluation[key] for key in ("ann", "images", "objects"))
        rows = [(shape, key) for shape in shapes for key in NETWORKS]
        gaps = {shape: _gap(evaluation, shape) for shape in shapes}
        note = f"{images} images, {objects} objects; figures in percent{''.join(gaps.values())}"
        if (kl := evaluation.get("kl")) is not None:
            note += f"; KL {kl:.4f} nats per image{beside(evaluation, 'kl', 4)}"
        figures, cards = [], []
        for shape, key in rows:
            first, *others = (evaluation[key][shape][column] for column in COLUMNS)
            figures.append((SHAPES[shape], first, span(evaluation, f"{key}.{shape}.AP"), *others))
        for shape, gap in gaps.items():
            ap, ap50 = (
                " → ".join(decimal(evaluation[key][shape][figure], 1) for key in NETWORKS)
                for figure in ("AP", "AP50")
            )
            small = f"original → spiking{gap}; AP50 {ap50}; {objects} objects on {images} images"
            cards.append((f"{SHAPES[shape]} AP", f"{ap} %", small))
        headers = ("class", *(f"{key.upper()} {SHAPES[shape]} AP" for shape, key in rows))
        by_class = evaluation["classes"].items()
        classes = tuple((name, *(row[key][shape] for shape, key in rows)) for name, row in by_class)
        return Summary(
            title="Precision",
            networks=tuple(key for _, key in rows),
            table=Table(("of", COLUMNS[0], "95 %", *COLUMNS[1:]), tuple(figures), digits=1),
            note=note,
            cards=tuple(cards),
            details=Table(headers, classes, digits=1),
            about_details="Average precision of each class",
            examples=f"Boxes with a score from {SMALLEST_SCORE}; a box is found again if the other network has one of the "
            "same class over it, with an IoU from 0.5.",
        )

    @classmethod
    def columns(cls, evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """AP of boxes and masks.

        >>> list(Detection.columns({"ann": {"bbox": {"AP": 60.0}}, "snn": {"bbox": {"AP": 55.0}}}))
        ['ANN box AP', 'SNN box AP']
        """
        columns = {}
        for shape, key in ((shape, key) for shape in evaluation["ann"] for key in NETWORKS):
            figure = Figure(evaluation[key][shape]["AP"], 1, span(evaluation, f"{key}.{shape}.AP"))
            columns[f"{key.upper()} {SHAPES[shape]} AP"] = figure
        return columns

    @classmethod
    def headline(cls, evaluation: Mapping[str, Any], labeled: bool = True) -> Headline:
        """Return AP of masks, or else of boxes."""
        shape = list(evaluation["ann"])[-1]
        ann, snn = (evaluation[network][shape]["AP"] for network in NETWORKS)
        bounds, paired = (bounds_of(evaluation, name) for name in (f"snn.{shape}.AP", f"difference.{shape}"))
        return Headline(f"{SHAPES[shape]} AP, %", ann, snn, evaluation.get("standard_error"), bounds, paired)


def _as_objects(results: Sequence[Mapping[str, Any]]) -> Objects:
    corners = [(x, y, x + width, y + height) for x, y, width, height in (r["bbox"] for r in results)]
    return {
        "scores": torch.tensor([r["score"] for r in results]),
        "labels": torch.tensor([r["category_id"] for r in results]),
        "boxes": torch.tensor(corners).view(-1, 4),
    }


def _gap(evaluation: Mapping[str, Any], shape: str) -> str:
    """Spiking minus original in words, where there are both."""
    ann, snn = (evaluation[network][shape]["AP"] for network in NETWORKS)
    if ann is None or snn is None:
        return ""
    return f"; {SHAPES[shape]} AP {change(evaluation, snn - ann, f'difference.{shape}')}"


def _truth(coco: Coco, number: int) -> str:
    annotations = (a for a in coco.record["annotations"] if a["image_id"] == number)
    counts = Counter(coco.categories[a["category_id"]] for a in annotations)
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing"


def _in_words(listed: Mapping[str, Sequence[Sequence[Any]]]) -> str:
    """Return which boxes of the original are found again, lost and new."""
    words = f"{len(listed['ann']) - len(listed['lost'])} of {len(listed['ann'])} boxes of the original are found again"
    for key in ("lost", "new"):
        if listed[key]:
            words += f"; {key}: " + ", ".join(f"{name} {score:.2f}" for name, score in listed[key])
    return words + "."
