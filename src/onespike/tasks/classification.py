"""Classification: one class per input, drawn from a softmax.

Class folders are matched to the network's class numbers by name, WordNet id or number, never by their order.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from onespike.errors import DataError
from onespike.runtime.batches import logits
from onespike.tasks.base import NETWORKS, Drawing, Objective, Score, Task, refuse_nan, relative_entropy, task
from onespike.tasks.images import read_image, thumbnail
from onespike.tasks.inputs import Item, Items
from onespike.tasks.intervals import interval, paired_interval, share_interval, span, stated
from onespike.tasks.summaries import Summary, Table, likeliest

SHARES = ("ann.top1", "ann.top5", "snn.top1", "snn.top5")


def match_classes(items: Items, names: Sequence[str] | None, ids: Sequence[str] | None = None) -> Items:
    """Return the same images, labeled with the network's class numbers; images without named folders stay unchanged.

    Case, underscores and hyphens do not matter, and one synonym of a name like `tench, Tinca tinca` is enough. `ids` are
    other unique names of the same classes, such as WordNet ids.
    """
    folders = items.class_names or ()
    used = sorted({folders[item.label] for item in items if folders and item.label is not None})
    if not used or folders == names:
        return items
    if names is None:
        raise DataError(
            f"{items.source}: the class names of the network are not known, so that the folder {used[0]!r} cannot be "
            "matched. Name each folder by the number of its class."
        )
    numbers = _numbers(used, names, ids or (), items.source)
    labels = (None if item.label is None else numbers[folders[item.label]] for item in items)
    labeled = (dataclasses.replace(item, label=n) for item, n in zip(items, labels, strict=True))
    return dataclasses.replace(items, items=tuple(labeled), class_names=tuple(names))


def _numbers(folders: Sequence[str], names: Sequence[str], ids: Sequence[str], source: str) -> dict[str, int]:
    # What a folder may be called, most certain first: name or id, normalized name, synonym.
    tables = [defaultdict[str, set[int]](set) for _ in range(3)]
    for number, name in [*enumerate(names), *enumerate(ids)]:
        tables[0][name].add(number)
        tables[1][_plain(name)].add(number)
        for synonym in name.split(","):
            tables[2][_plain(synonym)].add(number)
    numbers: dict[int, str] = {}
    for folder in folders:
        classes = next((t[key] for t in tables for key in (folder, _plain(folder)) if key in t), set[int]())
        if not classes:
            close = difflib.get_close_matches(_plain(folder), [_plain(n) for n in names], n=3, cutoff=0.6)
            hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            if not ids and re.fullmatch(r"n\d{8}", folder):
                hint = " timm knows the WordNet ids of ImageNet's classes: pip install 'onespike[timm]'."
            raise DataError(
                f"{source}: the folder {folder!r} is none of the {len(names)} classes of the network, which begin with "
                f"{names[0]!r}.{hint} Name each folder by its class, or all of them by the numbers of their classes."
            )
        number, *others = sorted(classes)
        if others:
            raise DataError(
                f"{source}: the folder {folder!r} could be the classes {' and '.join(map(str, sorted(classes)))} of the "
                "network. Name all folders by the numbers of their classes."
            )
        if (twin := numbers.setdefault(number, folder)) != folder:
            raise DataError(
                f"{source}: folders {twin!r} and {folder!r} are both {names[number]!r}. Merge them."
            )
    return {folder: number for number, folder in numbers.items()}


def _plain(name: str) -> str:
    return " ".join(re.split(r"[\s_,-]+", name.lower())).strip()


def _form(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"type {type(value).__name__}"


def check_labels(labels: Any, inputs: int, classes: int) -> None:
    """Refuse labels that are not one class number per input."""
    if not isinstance(labels, Tensor) or labels.shape != (inputs,):
        raise DataError(
            f"the labels of {inputs} inputs have {_form(labels)}. "
            "Give one class number per input; of one-hot rows, labels.argmax(1)."
        )
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise DataError(
            f"the data has label {int(wrong[0])}, and the network has {classes} classes (0 to {classes - 1}). "
            "Use a data folder with the classes that the network was trained for."
        )


def _scores(output: Any) -> Tensor:
    scores = logits(output)
    if isinstance(scores, Tensor) and scores.dim() == 2:
        return scores
    raise DataError(
        f"evaluate: an output of {_form(scores)} is not scores of shape (inputs, classes). Give a metric for it: any "
        "object with update(ann, snn, labels) and compute()."
    )


class Accuracy:
    """Top-1, top-5, agreement (percent) and the mean KL(ann‖snn) of the class probabilities (nats).

    The difference in top-1 has a standard error, paired by image.
    """

    def __init__(self) -> None:
        self.sums = Counter[str]()

    def update(self, ann: Any, snn: Any, labels: Tensor | None) -> None:
        """Add logits of shape (images, classes) and the labels; without labels there is no accuracy."""
        outputs = {"ann": _scores(ann).detach().double(), "snn": _scores(snn).detach().double()}
        for network, scores in outputs.items():
            refuse_nan(scores, network, "the images")
        kl, (before, after) = relative_entropy(*outputs.values()), (x.argmax(1) for x in outputs.values())
        self.sums.update({"images": len(kl), "kl": float(kl.sum()), "kl squared": float(kl.square().sum())})
        self.sums["agreement"] += int((before == after).sum())
        if labels is None:
            return
        check_labels(labels, *scores.shape)
        hits: dict[str, Tensor] = {}
        for network, scores in outputs.items():
            ranked = scores.topk(min(5, scores.shape[1])).indices == labels.to(scores.device)[:, None]
            hits |= {f"{network}.top1": ranked[:, 0], f"{network}.top5": ranked.any(1)}
        hits["gained"] = hits["snn.top1"] & ~hits["ann.top1"]
        hits["lost"] = hits["ann.top1"] & ~hits["snn.top1"]
        self.sums.update({"labels": len(labels), **{name: int(hit.sum()) for name, hit in hits.items()}})

    def merge(self, other: Accuracy) -> None:
        self.sums.update(other.sums)

    def compute(self) -> dict[str, Any]:
        """Return `{"ann": {"top1", "top5"}, "snn": {…}, "agreement", "kl", …}`; accuracies are None without labels."""
        images, gained, lost = (self.sums[name] for name in ("images", "gained", "lost"))
        labeled, mean, kl = self.sums["labels"] == images, (gained - lost) / images, self.sums["kl"] / images
        variance = (gained + lost) / images - mean**2
        kl_error = (max(self.sums["kl squared"] / images - kl**2, 0.0) / images) ** 0.5
        shares = {n: 100 * self.sums[n] / images for n in (*(SHARES if labeled else ()), "agreement")}
        intervals = {name: share_interval(share, images) for name, share in shares.items()}
        if labeled:
            intervals["difference"] = paired_interval(gained, lost, images)
        return {
            "task": Classification.name,
            **{n: {top: shares.get(f"{n}.{top}") for top in ("top1", "top5")} for n in NETWORKS},
            "agreement": shares["agreement"],
            "kl": kl,
            "kl_standard_error": kl_error,
            "images": images,
            "difference": 100 * mean if labeled else None,
            "standard_error": 100 * (variance / images) ** 0.5 if labeled else None,
            "intervals": {**intervals, "kl": interval(kl, kl_error, 0.0)},
        }


def _hit(expected: Any, actual: Any, labels: Tensor) -> Tensor:
    scores = _scores(actual)
    return 100.0 * (scores.argmax(-1) == labels.to(scores.device))


def _agreeing(expected: Any, actual: Any, labels: Any) -> Tensor:
    return 100.0 * (_scores(actual).argmax(-1) == _scores(expected).argmax(-1))


@task
@dataclass(frozen=True)
class Classification(Task):
    """A network whose output, or whose output's `logits`, scores classes: (inputs, classes)."""

    class_names: tuple[str, ...] | None = None
    class_ids: tuple[str, ...] | None = None  # of WordNet

    name = "classification"
    bundled = ("bundled:cifar10-calibration", "bundled:cifar10-test")
    verb = "classifies"
    scored_by = (("top-1 accuracy, %", "top1"),)
    compared_by = ("agreement with the original, %", "agreement")
    listed = (("{} top-1 %", "top1", 2), ("agreement %", "agreement", 2), ("KL nats", "kl", 4))
    aims: ClassVar[Mapping[str, Objective]] = {
        "top1": Objective(scored_by[0][0], lambda items: Score(_hit), labeled=True, share=True),
        "agreement": Objective(compared_by[0], lambda items: Score(_agreeing), share=True),
    }

    def drawing(self, size: int, generator: Generator) -> Drawing:
        """Sample a class from each input's softmax: p/E is largest at a class drawn from p, for E exponential."""
        exponentials: list[Tensor] = []

        def log_probability(output: Any, places: Tensor) -> Tensor:
            scores = _scores(output)
            if not exponentials:
                exponentials.append(torch.empty(size, scores.shape[-1]).exponential_(generator=generator))
            drawn = (scores.detach().softmax(-1).cpu() / exponentials[0][places]).argmax(-1, keepdim=True)
            return scores.log_softmax(-1).gather(-1, drawn.to(scores.device)).sum()

        return log_probability

    def divergence(self, expected: Any, actual: Any) -> Tensor:
        return relative_entropy(_scores(expected), _scores(actual)).sum()

    def lost(self, expected: Any, actual: Any) -> Tensor:
        """Return how much less probable the spiking network's class is than the best one, by the original's probabilities.

        If labels were drawn from them, the mean would be the loss of accuracy.
        """
        p, best = _scores(expected).softmax(-1), _scores(actual).argmax(-1, keepdim=True)
        return p.amax(-1) - p.gather(-1, best)[..., 0]

    def differences(self, expected: Any, actual: Any) -> Tensor:
        return (_scores(expected).argmax(-1) != _scores(actual).argmax(-1)).float()

    def named(self, items: Items) -> Items:
        return match_classes(items, self.class_names, self.class_ids)

    def objective(self, items: Items) -> str:
        return "top1" if items.labeled else "kl"

    def metric(self, items: Items) -> Accuracy:
        return Accuracy()

    def right(self, output: Any, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        scores = _scores(output).cpu()
        check_labels(labels, *scores.shape)
        return scores.argmax(-1) == labels, -F.cross_entropy(scores, labels, reduction="none")

    def example(self, item: Item, ann: Any, snn: Any, items: Items) -> dict[str, Any]:
        def named(index: int) -> str:
            return names[index] if names is not None and index < len(names) else f"class {index}"

        names = self.class_names or items.class_names
        best = likeliest(_scores(ann)[0], _scores(snn)[0], named)
        parts = {key: ", ".join(f"{name} {100 * p:.1f} %" for name, p in rows) for key, rows in best.items()}
        return {
            "label": None if item.label is None else f"label {named(item.label)}",
            "pictures": {} if item.content is not None else {"input": thumbnail(read_image(item))},
            "agree": not bool(self.differences(ann, snn).any()),
            **best,
            "text": [f"{key.upper()} {classes}" for key, classes in parts.items()],
        }

    @staticmethod
    def summary(evaluation: Mapping[str, Any], published: float | None = None) -> Summary:
        agreement = stated(evaluation, evaluation["agreement"], "agreement", 2, " %")
        kl = stated(evaluation, evaluation["kl"], "kl", 4, " nats")
        note = f"agreement {agreement}, KL {kl}, {evaluation['images']} images"
        if (difference := evaluation.get("difference")) is not None:
            note += f"; difference {stated(evaluation, difference, 'difference', 1, ' points', sign=True)}"
        publisher = ""
        if published is not None:
            publisher = f"published top-1 of these weights: {published:.2f} % (on the whole test set)"
        rows = tuple(
            sum(((evaluation[key][top], span(evaluation, f"{key}.{top}")) for top in ("top1", "top5")), ())
            for key in NETWORKS
        )
        title = "Agreement with the original" if evaluation["snn"]["top1"] is None else "Accuracy"
        return Summary(title, Table(("top-1 %", "95 %", "top-5 %", "95 %"), rows), note, published=publisher)
