"""Detection and instance segmentation: objects that are present or not, with boxes, perhaps masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from onespike.errors import DataError
from onespike.runtime.figures import figure, picture
from onespike.tasks.base import NETWORKS, Objective, Task, task
from onespike.tasks.coco import Coco, category_ids, list_coco, unlabeled
from onespike.tasks.images import read_image
from onespike.tasks.inputs import Item, Items
from onespike.tasks.intervals import span, stated
from onespike.tasks.objects import Objects, drawn, paired, parted, unlike
from onespike.tasks.precision import AveragePrecision, Precision, Results
from onespike.tasks.summaries import Summary, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
"""Okabe and Ito's palette, one color per class in turn."""
SMALLEST_SCORE = 0.3
SIDE = 2.4  # the longer side of a single picture, in inches
SHAPES = {"bbox": "box", "segm": "mask"}
COLUMNS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR100")


@task
@dataclass(frozen=True)
class Detection(Task):
    """A network that finds objects."""

    results: Results  # of its output and the images' COCO records, with the network's class numbers
    objects: Callable[[Any], Sequence[Objects]]  # in its output, per image, as tensors with gradients
    masks: bool = False  # whether they are scored as well as boxes
    class_names: tuple[str, ...] | None = None

    name = "detection"
    bundled = ("bundled:scenes-calibration", "bundled:scenes-test")
    verb = "finds objects"
    scored_by = (("mask AP, %", "segm.AP"), ("box AP, %", "bbox.AP"))
    listed = (("{} box AP", "bbox.AP", 1), ("{} mask AP", "segm.AP", 1))

    @property
    def aims(self) -> Mapping[str, Objective]:
        title, _ = self.scored_by[0 if self.masks else 1]
        precision = Objective(title, lambda items: Precision(self.metric(items)), labeled=True, partial=False)
        return {"ap": precision}

    def _pairs(self, expected: Any, actual: Any) -> Iterator[tuple[Objects, Objects]]:
        return zip(self.objects(expected), self.objects(actual), strict=True)

    def drawn(self, output: Any, sources: Sequence[Generator]) -> Tensor:
        """Sample objects with the probability of their score, boxes and masks with noise: see `objects`."""
        return torch.stack([drawn(*pair) for pair in zip(self.objects(output), sources, strict=True)]).sum()

    def divergence(self, expected: Any, actual: Any) -> Tensor:
        """Return KL of scores, boxes and masks of the objects that both networks find, and of those that one finds."""
        return self._unlike(expected, actual).sum()

    def _unlike(self, expected: Any, actual: Any) -> Tensor:
        return torch.stack([unlike(*pair) for pair in self._pairs(expected, actual)])

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
        return "kl" if items.truth is None else "ap"

    def metric(self, items: Items) -> AveragePrecision:
        coco = items.truth
        if not isinstance(coco, Coco):
            raise DataError(f"{items.source}: boxes are scored with annotations. Give annotations=FILE.")
        ids = category_ids(self.class_names, coco.categories)
        return AveragePrecision(coco, self.results, self.masks, ids, self._unlike)

    def example(self, item: Item, ann: Any, snn: Any, items: Items) -> dict[str, Any]:
        """Return pictures of both networks' boxes and masks from a score of 0.3, and the boxes that only one has."""
        metric = self.metric(items)
        names, number, image = metric.coco.categories, int(item.id or 0), read_image(item)
        results = {}
        for key, output in (("ann", ann), ("snn", snn)):
            sure = (r for r in metric.checked(output, key, [number]) if r["score"] >= SMALLEST_SCORE)
            results[key] = sorted(sure, key=lambda r: -r["score"])
        matches = zip(("lost", "new"), NETWORKS, paired(*map(_as_objects, results.values())), strict=True)
        for kind, network, places in list(matches):
            results[kind] = [r for i, r in enumerate(results[network]) if i not in places.tolist()]
        listed = {key: [[names[r["category_id"]], r["score"]] for r in rows] for key, rows in results.items()}
        annotations = (a for a in metric.coco.record["annotations"] if a["image_id"] == number)
        counts = Counter(names[a["category_id"]] for a in annotations)
        text = f"{len(listed['ann']) - len(listed['lost'])} of {len(listed['ann'])} boxes of the original are found again"
        for key in ("lost", "new"):
            if listed[key]:
                text += f"; {key}: " + ", ".join(f"{name} {score:.2f}" for name, score in listed[key])
        return {
            "label": "truth " + (", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing"),
            "agree": not results["lost"] and not results["new"],
            "pictures": {title: picture(panel(image, results[k], names)) for k, title in NETWORKS.items()},
            **listed,
            "text": [f"{text}."],
        }

    @staticmethod
    def summary(evaluation: Mapping[str, Any], published: float | None = None) -> Summary:
        shapes, images, objects = (evaluation[key] for key in ("ann", "images", "objects"))
        figures, note = [], f"{images} images, {objects} objects; figures in percent"
        for shape in shapes:
            for key in NETWORKS:
                first, *others = (evaluation[key][shape][column] for column in COLUMNS)
                figures.append((SHAPES[shape], first, span(evaluation, f"{key}.{shape}.AP"), *others))
            ann, snn = (evaluation[key][shape]["AP"] for key in NETWORKS)
            if ann is not None and snn is not None:
                note += f"; {SHAPES[shape]} AP {stated(evaluation, snn - ann, f'difference.{shape}', 1, sign=True)}"
        if (kl := evaluation.get("kl")) is not None:
            note += f"; KL {stated(evaluation, kl, 'kl', 4, ' nats per image')}"
        rows = [(shape, key) for shape in shapes for key in NETWORKS]
        headers = ("class", *(f"{key.upper()} {SHAPES[shape]} AP" for shape, key in rows))
        by_class = evaluation["classes"].items()
        classes = tuple((name, *(row[key][shape] for shape, key in rows)) for name, row in by_class)
        return Summary(
            title="Precision",
            table=Table(("of", COLUMNS[0], "95 %", *COLUMNS[1:]), tuple(figures), digits=1),
            note=note,
            networks=tuple(key for _, key in rows),
            details=Table(headers, classes, digits=1),
            examples=f"Boxes with a score from {SMALLEST_SCORE}; a box is found again if the other network has one of the "
            "same class over it, with an IoU from 0.5.",
        )


def _as_objects(results: Sequence[Mapping[str, Any]]) -> Objects:
    corners = [(x, y, x + width, y + height) for x, y, width, height in (r["bbox"] for r in results)]
    return {
        "scores": torch.tensor([r["score"] for r in results]),
        "labels": torch.tensor([r["category_id"] for r in results]),
        "boxes": torch.tensor(corners).view(-1, 4),
    }


def panel(image: Any, results: Sequence[Mapping[str, Any]], categories: Mapping[int, str]) -> Figure:
    """Draw one image with one network's results, without margin."""
    width, height = (SIDE * side / max(image.size) for side in image.size)
    drawing, axes = figure(width, height, margin=False)
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    axes.imshow(image, interpolation="nearest")
    axes.axis("off")
    for result in sorted(results, key=lambda r: r["score"]):  # the best results are on top
        color = COLORS[list(categories).index(result["category_id"]) % len(COLORS)]
        x, y, width, height = result["bbox"]
        if "segmentation" in result:
            from pycocotools.mask import decode

            mask = decode(result["segmentation"])[..., None]
            axes.imshow(mask * [*to_rgb(color), 0.45], interpolation="nearest")
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), width, height, fill=False, ec=color, lw=1.5))
        right = x > 0.6 * image.size[0]  # there the label ends where the box ends, to stay inside the picture
        axes.text(
            x + width if right else x, max(y - 1, 0), f"{categories[result['category_id']]} {result['score']:.2f}",
            fontsize=7, color="black", va="bottom", ha="right" if right else "left",
            bbox=dict(fc=color, ec="none", pad=0.8, alpha=0.85),
        )  # fmt: skip
    return drawing
