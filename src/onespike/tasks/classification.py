"""Classification: one class per input, drawn from a softmax."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from onespike.errors import DataError
from onespike.runtime.batches import logits
from onespike.tasks.base import Drawing, Metric, Objective, Task, refusals, task
from onespike.tasks.class_folders import match_classes
from onespike.tasks.images import read_image, thumbnail
from onespike.tasks.inputs import Item, Items
from onespike.tasks.intervals import beside, change, interval, paired_interval, share_interval, span
from onespike.tasks.scores import NETWORKS, Mean, refuse_nan, relative_entropy
from onespike.tasks.summaries import Summary, Table

BEST = 3
"""Classes that an example shows per network."""
SHARES = ("ann.top1", "ann.top5", "snn.top1", "snn.top5")


def check_labels(labels: Any, inputs: int, classes: int) -> None:
    """Refuse labels that are not one class number per input."""
    shape = tuple(labels.shape) if isinstance(labels, Tensor) else None
    if shape != (inputs,):
        form = f"type {type(labels).__name__}" if shape is None else f"shape {shape}"
        raise DataError(
            f"the labels of {inputs} inputs have {form}. "
            "Give one class number per input; of one-hot rows, labels.argmax(1)."
        )
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise DataError(
            f"the data has label {int(wrong[0])}, and the network has {classes} classes (0 to {classes - 1}). "
            "Use a data folder with the classes that the network was trained for."
        )


def _class_scores(output: Any) -> Tensor:
    scores = logits(output)
    if not isinstance(scores, Tensor) or scores.dim() != 2:
        form = (
            f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"type {type(scores).__name__}"
        )
        raise DataError(
            f"evaluate: an output of {form} is not scores of shape (inputs, classes). Give a metric for it: any object "
            "with update(ann, snn, labels) and compute()."
        )
    return scores.detach().double()


class Accuracy:
    """Top-1, top-5, agreement (percent) and the mean KL(ann‖snn) of the class probabilities (nats).

    The difference in top-1 has a standard error, paired by image.

    >>> import torch
    >>> metric = Accuracy()
    >>> right, wrong = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    >>> for spiking in (right, wrong, right, right):
    ...     metric.update(right, spiking, torch.tensor([0]))
    >>> scores = metric.compute()
    >>> scores["ann"]["top1"], scores["snn"]["top1"], scores["agreement"]
    (100.0, 75.0, 75.0)
    >>> scores["difference"], round(scores["standard_error"], 1)
    (-25.0, 21.7)
    """

    def __init__(self) -> None:
        self.sums = Counter[str]()
        self.labeled = True

    def update(self, ann: Any, snn: Any, labels: Tensor | None) -> None:
        """Add logits of shape (images, classes) and the labels; without labels there is no accuracy."""
        outputs = {"ann": _class_scores(ann), "snn": _class_scores(snn)}
        for network, scores in outputs.items():
            refuse_nan(scores, network, "the images")
        kl = relative_entropy(outputs["ann"], outputs["snn"])
        self.sums.update({"images": len(kl), "kl": float(kl.sum()), "kl squared": float(kl.square().sum())})
        self.sums["agreement"] += int((outputs["ann"].argmax(1) == outputs["snn"].argmax(1)).sum())
        if labels is None:
            self.labeled = False
        else:
            check_labels(labels, *scores.shape)
            self.sums.update(_hits(outputs, labels.to(kl.device)))

    def merge(self, other: Accuracy) -> None:
        self.sums.update(other.sums)
        self.labeled = self.labeled and other.labeled

    def compute(self) -> dict[str, Any]:
        """Return `{"ann": {"top1", "top5"}, "snn": {…}, "agreement", "kl", …}`; accuracies are None without labels."""
        images, gained, lost = (self.sums[name] for name in ("images", "gained", "lost"))
        if not images:
            raise DataError("no image was scored. Give a data folder with at least one image.")
        mean, kl = (gained - lost) / images, self.sums["kl"] / images
        variance = (gained + lost) / images - mean**2
        kl_error = (max(self.sums["kl squared"] / images - kl**2, 0.0) / images) ** 0.5
        shares = {name: 100 * self.sums[name] / images for name in (*SHARES, "agreement")}
        intervals: dict[str, Any] = {name: share_interval(share, images) for name, share in shares.items()}
        intervals |= {"difference": paired_interval(gained, lost, images), "kl": interval(kl, kl_error, 0.0)}
        if not self.labeled:
            intervals = {name: intervals[name] for name in ("agreement", "kl")}
        hits = {n: shares[n] if self.labeled else None for n in SHARES}
        return {
            "task": Classification.name,
            **{name: {top: hits[f"{name}.{top}"] for top in ("top1", "top5")} for name in NETWORKS},
            "agreement": shares["agreement"],
            "kl": kl,
            "kl_standard_error": kl_error,
            "images": images,
            "difference": 100 * mean if self.labeled else None,
            "standard_error": 100 * (variance / images) ** 0.5 if self.labeled else None,
            "intervals": intervals,
        }


def _hits(outputs: Mapping[str, Tensor], labels: Tensor) -> dict[str, int]:
    """Return how many labels are among the best classes, and where only one of the networks is right."""
    hits: dict[str, Tensor] = {}
    for network, scores in outputs.items():
        ranked = scores.topk(min(5, scores.shape[1])).indices == labels[:, None]
        hits |= {f"{network}.top1": ranked[:, 0], f"{network}.top5": ranked.any(1)}
    hits["gained"] = hits["snn.top1"] & ~hits["ann.top1"]
    hits["lost"] = hits["ann.top1"] & ~hits["snn.top1"]
    return {name: int(hit.sum()) for name, hit in hits.items()}


def _scores(output: Any) -> Tensor:
    scores: Tensor = logits(output)
    return scores


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
    cannot = refusals("classifies", "annotations", "generate", "picture", "tasks")
    scored_by = (("top-1 accuracy, %", "top1"),)
    compared_by = ("agreement with the original, %", "agreement")
    listed = (("{} top-1 %", "top1", 2), ("agreement %", "agreement", 2), ("KL nats", "kl", 4))
    aims: ClassVar[Mapping[str, Objective]] = {
        "top1": Objective(scored_by[0][0], lambda items: Mean(_hit), labeled=True, share=True),
        "agreement": Objective(compared_by[0], lambda items: Mean(_agreeing), compares=True, share=True),
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
        """Return KL of the class probabilities; a class of probability 0 adds nothing."""
        log_p, log_q = logits(expected).log_softmax(-1), logits(actual).log_softmax(-1)
        masked = log_p == -torch.inf
        if bool(masked.any()):  # ∞ − ∞ would be NaN
            log_p, log_q = log_p.masked_fill(masked, 0.0), log_q.masked_fill(masked, 0.0)
        return F.kl_div(log_q, log_p, reduction="sum", log_target=True)

    def lost(self, expected: Any, actual: Any) -> Tensor:
        """Return how much less probable the spiking network's class is than the best one, by the original's probabilities.

        If labels were drawn from them, the mean would be the loss of accuracy.
        """
        p, best = _scores(expected).softmax(-1), _scores(actual).argmax(-1, keepdim=True)
        return p.amax(-1) - p.gather(-1, best)[..., 0]

    def differences(self, expected: Any, actual: Any) -> Tensor:
        """Return 1 where the best class differs."""
        return (_scores(expected).argmax(-1) != _scores(actual).argmax(-1)).float()

    def named(self, items: Items) -> Items:
        return match_classes(items, self.class_names, self.class_ids)

    def objective(self, items: Items) -> str:
        return "top1" if items.labeled else "kl"

    def metric(self, items: Items) -> Metric:
        return Accuracy()

    def right(self, output: Any, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        scores = _scores(output).cpu()
        check_labels(labels, *scores.shape)
        return scores.argmax(-1) == labels, -F.cross_entropy(scores, labels, reduction="none")

    def example(self, item: Item, ann: Any, snn: Any, items: Items) -> dict[str, Any]:
        """Return the image, its class, and both networks' best classes."""
        names = self.class_names or items.class_names
        best = {"ann": _best(ann, names), "snn": _best(snn, names)}
        parts = {key: ", ".join(f"{name} {100 * p:.1f} %" for name, p in rows) for key, rows in best.items()}
        return {
            "label": None if item.label is None else f"label {_class(item.label, names)}",
            "pictures": {} if item.content is not None else {"input": thumbnail(read_image(item))},
            "agree": not bool(self.differences(ann, snn).any()),
            **best,
            "text": [f"{key.upper()} {classes}" for key, classes in parts.items()],
        }

    @staticmethod
    def summary(evaluation: Mapping[str, Any], published: float | None = None) -> Summary:
        """Summarize top-1 and top-5 of both networks, agreement and KL."""
        agreement, kl, images = (evaluation[key] for key in ("agreement", "kl", "images"))
        alike, certainty = beside(evaluation, "agreement"), beside(evaluation, "kl", 4)
        same = f"same answer as the original{alike}; KL {kl:.3f} nats{certainty}"
        title, cards = "Agreement with the original", [("agreement", f"{agreement:.1f} %", same)]
        note = f"agreement {agreement:.2f} %{alike}, KL {kl:.4f} nats{certainty}, {images} images"
        stated, also = "", ""
        if published is not None:
            stated = f"published top-1 of these weights: {published:.2f} % (on the whole test set)"
            also = f"; published {published:.1f} %"
        if evaluation["snn"]["top1"] is not None:
            title, difference = "Accuracy", ""
            if evaluation.get("difference") is not None:
                points = change(evaluation, evaluation["difference"], "difference", unit=" points")
                difference = f"; difference {points}"
            note += difference
            both = " → ".join(f"{evaluation[key]['top1']:.1f}" for key in NETWORKS)
            small = f"original → spiking, {images} images{also}{difference}"
            cards.insert(0, ("top-1 accuracy", f"{both} %", small))
        rows = tuple(
            sum(((evaluation[key][top], span(evaluation, f"{key}.{top}")) for top in ("top1", "top5")), ())
            for key in NETWORKS
        )
        table = Table(("top-1 %", "95 %", "top-5 %", "95 %"), rows)
        return Summary(title, table, note, tuple(cards), published=stated)


def _class(index: int, names: tuple[str, ...] | None) -> str:
    return names[index] if names is not None and index < len(names) else f"class {index}"


def _best(output: Any, names: tuple[str, ...] | None) -> list[list[Any]]:
    values, classes = logits(output)[0].softmax(-1).topk(min(BEST, logits(output).shape[-1]))
    return [[_class(int(c), names), float(v)] for v, c in zip(values, classes, strict=True)]
