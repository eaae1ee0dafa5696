"""A few images with what both detectors found on them, and where they part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from onespike.doctor.trail import trail
from onespike.pipeline import Pair
from onespike.report.plots import picture
from onespike.report.predictions import SMALLEST_SCORE, found_on
from onespike.tasks import Detection, Item, Items, batches, matched, read_image

EXAMPLES = 6

Results = Sequence[Mapping[str, Any]]


def detected(pair: Pair, items: Items, metric: Detection) -> list[dict[str, Any]]:
    """Pictures of both networks' boxes and masks; those images first on which they differ most.

    A box of one network is found again by the other one if that has a box of the same class over it (IoU from 0.5).
    Boxes with a score below 0.3 are left out.
    """
    names, rows = metric.coco.categories, []
    for item in items:
        ann, snn = (_of(metric.found[network], item) for network in ("ann", "snn"))
        both = matched(ann, snn)
        lost = [r for i, r in enumerate(ann) if i not in both]
        new = [r for i, r in enumerate(snn) if i not in both.values()]
        rows.append((item, ann, snn, lost, new))
    rows.sort(key=lambda row: -len(row[3]) - len(row[4]))
    apart = sum(bool(row[3] or row[4]) for row in rows)
    half = min(apart, max(EXAMPLES // 2, EXAMPLES - (len(rows) - apart)))
    chosen = [*rows[:half], *rows[apart:]][:EXAMPLES]
    return [
        {
            "name": item.name,
            "label": _truth(metric, item),
            "agree": not lost and not new,
            "pictures": {
                network: picture(found_on(read_image(item), found, names))
                for network, found in (("ann", ann), ("snn", snn))
            },
            **{k: _named(v, names) for k, v in (("ann", ann), ("snn", snn), ("lost", lost), ("new", new))},
            "trail": [[site, round(db, 2)] for site, db in trail(pair.snn, _input(pair, item))],
        }
        for item, ann, snn, lost, new in chosen
    ]


def _of(results: Results, item: Item) -> list[Mapping[str, Any]]:
    """The results on one image that are worth showing, best first."""
    own = [r for r in results if r["image_id"] == item.id and r["score"] >= SMALLEST_SCORE]
    return sorted(own, key=lambda r: -r["score"])


def _named(results: Results, names: Mapping[int, str]) -> list[list[Any]]:
    return [[names[r["category_id"]], r["score"]] for r in results]


def _truth(metric: Detection, item: Item) -> str:
    coco = metric.coco
    own = Counter(
        coco.categories[a["category_id"]] for a in coco.record["annotations"] if a["image_id"] == item.id
    )
    return ", ".join(f"{number} {name}" for name, number in own.items()) or "nothing"


def _input(pair: Pair, item: Item) -> Any:
    one = Items("", (item,))
    return next(batches(one, pair.loaded.transform, 1, collate=pair.loaded.collate))[0]
