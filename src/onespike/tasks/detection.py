"""Detection and instance segmentation: objects that are present or not, with boxes, perhaps masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from onespike.errors import DataError, UsageError
from onespike.runtime.figures import picture, png
from onespike.tasks.base import (
    Described,
    Drawing,
    Figure,
    Headline,
    Metric,
    Objective,
    Summary,
    Table,
    divergence,
    task,
)
from onespike.tasks.coco import (
    Coco,
    category_ids,
    list_coco,
    matched,
    unlabeled,
)
from onespike.tasks.images import Item, Items, read_image
from onespike.tasks.intervals import beside, bounds_of, span
from onespike.tasks.objects import Found, drawn, parted, unlike
from onespike.tasks.pictures import SMALLEST_SCORE, found_on, predictions
from onespike.tasks.precision import AveragePrecision, Precision, Results

SHAPES = {"bbox": "box", "segm": "mask"}
SHOWN = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR100")
PICTURED = 4


@task
@dataclass(frozen=True)
class Detection:
    """A network that finds objects.

    Attributes:
        results: its output and the images' COCO records → COCO results, with the network's class numbers.
        found: its output → per image `scores`, `labels`, `boxes` and perhaps `masks` as tensors with gradients.
        masks: whether masks are scored as well as boxes.
    """

    results: Results
    found: Callable[[Any], Sequence[Found]]
    masks: bool = False
    name: ClassVar[str] = "detection"
    unit: ClassVar[str] = "images"
    enough: ClassVar[int] = 256
    positional: ClassVar[bool] = True
    bundled: ClassVar[tuple[str, str]] = ("bundled:scenes-calibration", "bundled:scenes-test")
    cannot: ClassVar[Mapping[str, str]] = {
        "tasks": "--tasks asks questions of a language model, and this network finds objects. Leave it out.",
        "generate": "generate: this network finds objects, and writes no text. Leave it to a language model.",
        "calibrate": "a detector searches λ on annotated images, and takes them from --data. Leave --calibrate out.",
        "compile": "search: the objects that a detector finds differ in number, and it cannot be compiled as a whole. "
        "Leave --compile out.",
    }

    @property
    def objectives(self) -> Mapping[str, Objective]:
        return {
            "ap": Objective(
                f"{SHAPES['segm' if self.masks else 'bbox']} AP, %",
                lambda items, network: Precision(self._metric(items, network)),
                labeled=True,
                partial=False,
            ),
            "kl": divergence(self),
        }

    def drawing(self, size: int, generator: Generator) -> Drawing:
        """Sample objects with the probability of their score, boxes and masks with noise: see `objects`."""
        seeds = torch.randint(2**62, (size,), generator=generator).tolist()

        def log_probability(output: Any, places: Tensor) -> Tensor:
            each = zip(self.found(output), places.tolist(), strict=True)
            terms = [drawn(found, torch.Generator().manual_seed(seeds[place])) for found, place in each]
            return torch.stack(terms).sum()

        return log_probability

    def divergence(self, expected: Any, actual: Any) -> Tensor:
        """Return KL of scores, boxes and masks of the objects that both networks find, and of those that one finds."""
        both = zip(self.found(expected), self.found(actual), strict=True)
        return torch.stack([unlike(ann, snn) for ann, snn in both]).sum()

    def lost(self, expected: Any, actual: Any) -> Tensor:
        """Return the share of objects with a score of at least 0.3 that only one network finds."""
        both = list(zip(self.found(expected), self.found(actual), strict=True))
        objects = [sum(int((one["scores"] >= SMALLEST_SCORE).sum()) for one in pair) for pair in both]
        apart = self.differences(expected, actual)
        return apart / torch.tensor(objects).clamp(min=1)

    def differences(self, expected: Any, actual: Any) -> Tensor:
        """Return the number of objects with a score of at least 0.3 that only one network finds."""
        both = zip(self.found(expected), self.found(actual), strict=True)
        return torch.tensor([float(parted(ann, snn, SMALLEST_SCORE)) for ann, snn in both])

    def inputs(self, source: str) -> Items:
        """Return the images of a folder."""
        return unlabeled(source)

    def labeled(self, source: str, annotations: Path | None, network: Described) -> Items:
        """Return the annotated images of a folder."""
        return list_coco(source, annotations)[0]

    def named(self, items: Items, network: Described) -> Items:
        """Return the images: their labels are ids, and classes are matched with the annotations' categories."""
        return items

    def objective(self, items: Items) -> str:
        """Return AP, or KL without annotations."""
        return "kl" if items.truth is None else "ap"

    def front(self, items: Items) -> str:
        """Return AP."""
        return "ap"

    def load(self, item: Item) -> Any:
        """Load the image in RGB."""
        return read_image(item)

    def metric(self, items: Items, network: Described) -> Metric:
        """Return AP of both networks by the images' annotations."""
        return self._metric(items, network)

    def _metric(self, items: Items, network: Described) -> AveragePrecision:
        coco = items.truth
        if not isinstance(coco, Coco):
            raise DataError(f"{network.spec}: boxes are scored with annotations. Give --annotations FILE.")
        ids = category_ids(network.class_names, coco.categories)
        return AveragePrecision(coco, self.results, self.masks, ids, self._apart)

    def _apart(self, expected: Any, actual: Any) -> list[float]:
        """The divergence of each image."""
        with torch.no_grad():
            both = zip(self.found(expected), self.found(actual), strict=True)
            return [float(unlike(ann, snn)) for ann, snn in both]

    def row(self, inputs: Any, number: int, place: int) -> str | None:
        """Return None: patches of an image have no names."""
        return None

    def right(self, output: Any, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return None: an image with many objects is neither right nor wrong."""
        return None

    def example(self, item: Item, ann: Any, snn: Any, items: Items, network: Described) -> dict[str, Any]:
        """Return pictures of both networks' boxes and masks, and the boxes that only one network has.

        A box of one network is found again if the other has a box of the same class over it (IoU of at least
        0.5). Boxes with a score below 0.3 are left out.
        """
        metric = self._metric(items, network)
        names, number = metric.coco.categories, int(item.id or 0)
        found = {
            key: sorted(
                (r for r in metric.checked(output, key, [number]) if r["score"] >= SMALLEST_SCORE),
                key=lambda r: -r["score"],
            )
            for key, output in (("ann", ann), ("snn", snn))
        }
        both = matched(found["ann"], found["snn"])
        found["lost"] = [r for i, r in enumerate(found["ann"]) if i not in both]
        found["new"] = [r for i, r in enumerate(found["snn"]) if i not in both.values()]
        listed = {key: [[names[r["category_id"]], r["score"]] for r in rows] for key, rows in found.items()}
        image = read_image(item)
        return {
            "label": f"truth {_truth(metric.coco, number)}",
            "agree": not found["lost"] and not found["new"],
            "pictures": {
                title: picture(found_on(image, found[key], names))
                for key, title in (("ann", "original"), ("snn", "spiking"))
            },
            **listed,
            "text": [_in_words(listed)],
        }

    def picture(self, items: Items, metric: Metric) -> bytes:
        """Draw what both networks find on the first images, side by side."""
        if not isinstance(metric, AveragePrecision):
            raise UsageError("a picture needs the metric that has seen the images. Evaluate them first.")
        shown = [(read_image(item), item.id) for item in items.items[:PICTURED]]
        return png(predictions(shown, metric.found, metric.coco.categories))

    @staticmethod
    def summary(evaluation: Mapping[str, Any], published: float | None = None) -> Summary:
        """Summarize COCO's figures of both networks, and AP per class."""
        ann, snn = evaluation["ann"], evaluation["snn"]
        rows = [(shape, key) for shape in ann for key in ("ann", "snn")]
        size = f"{evaluation['images']} images, {evaluation['objects']} objects"
        kl = evaluation.get("kl")
        apart = "" if kl is None else f"; KL {kl:.4f} nats per image{beside(evaluation, 'kl', 4)}"
        table = Table(
            ("of", SHOWN[0], "95 %", *SHOWN[1:]),
            tuple(
                (
                    SHAPES[s],
                    evaluation[key][s][SHOWN[0]],
                    span(evaluation, f"{key}.{s}.AP"),
                    *(evaluation[key][s][f] for f in SHOWN[1:]),
                )
                for s, key in rows
            ),
            digits=1,
        )
        classes = Table(
            ("class", *(f"{key.upper()} {SHAPES[s]} AP" for s, key in rows)),
            tuple((name, *(row[key][s] for s, key in rows)) for name, row in evaluation["classes"].items()),
            digits=1,
        )
        cards = tuple(
            (
                f"{SHAPES[s]} AP",
                f"{_figure(ann[s]['AP'])} → {_figure(snn[s]['AP'])} %",
                f"original → spiking{_gap(evaluation, s)}; AP50 {_figure(ann[s]['AP50'])} → {_figure(snn[s]['AP50'])}; "
                f"{evaluation['objects']} objects on {evaluation['images']} images",
            )
            for s in ann
        )
        return Summary(
            title="Precision",
            networks=tuple(key for _, key in rows),
            table=table,
            note=f"{size}; figures in percent" + "".join(_gap(evaluation, s) for s in ann) + apart,
            cards=cards,
            details=classes,
            about_details="Average precision of each class",
            examples=f"Boxes with a score from {SMALLEST_SCORE}; a box is found again if the other network has one of the "
            "same class over it, with an IoU from 0.5.",
        )

    @staticmethod
    def columns(evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """AP of boxes and masks.

        >>> list(Detection.columns({"ann": {"bbox": {"AP": 60.0}}, "snn": {"bbox": {"AP": 55.0}}}))
        ['ANN box AP', 'SNN box AP']
        """
        return {
            f"{key.upper()} {SHAPES[shape]} AP": Figure(
                evaluation[key][shape]["AP"], 1, span(evaluation, f"{key}.{shape}.AP")
            )
            for shape in evaluation["ann"]
            for key in ("ann", "snn")
        }

    @staticmethod
    def headline(evaluation: Mapping[str, Any], labeled: bool = True) -> Headline:
        """Return AP of masks, or else of boxes."""
        shape = list(evaluation["ann"])[-1]
        ann, snn = (evaluation[network][shape]["AP"] for network in ("ann", "snn"))
        bounds, paired = (bounds_of(evaluation, name) for name in (f"snn.{shape}.AP", f"difference.{shape}"))
        return Headline(f"{SHAPES[shape]} AP, %", ann, snn, evaluation.get("standard_error"), bounds, paired)


def _gap(evaluation: Mapping[str, Any], shape: str) -> str:
    """Spiking minus original in words, where it is known."""
    ann, snn = (evaluation[network][shape]["AP"] for network in ("ann", "snn"))
    if ann is None or snn is None:
        return ""
    shown = f"{snn - ann:+.1f}".replace("-", "−")
    return f"; {SHAPES[shape]} AP {shown}{beside(evaluation, f'difference.{shape}', sign=True)}"


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _truth(coco: Coco, number: int) -> str:
    own = Counter(
        coco.categories[a["category_id"]] for a in coco.record["annotations"] if a["image_id"] == number
    )
    return ", ".join(f"{number} {name}" for name, number in own.items()) or "nothing"


def _in_words(listed: Mapping[str, Sequence[Sequence[Any]]]) -> str:
    """Return which boxes of the original are found again, lost and new."""
    words = f"{len(listed['ann']) - len(listed['lost'])} of {len(listed['ann'])} boxes of the original are found again"
    for key in ("lost", "new"):
        if listed[key]:
            words += f"; {key}: " + ", ".join(f"{name} {score:.2f}" for name, score in listed[key])
    return words + "."
