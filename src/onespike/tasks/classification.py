"""Classification: one class per input, drawn from a softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from onespike.errors import UsageError
from onespike.runtime.batches import logits
from onespike.tasks.accuracy import Accuracy, check_labels
from onespike.tasks.base import (
    Described,
    Drawing,
    Figure,
    Headline,
    Mean,
    Metric,
    Objective,
    Summary,
    Table,
    divergence,
    task,
)
from onespike.tasks.class_folders import match_classes
from onespike.tasks.images import Item, Items, list_images, read_image, thumbnail
from onespike.tasks.intervals import beside, bounds_of, span

BEST = 3
"""Classes that an example shows per network."""


def _scores(output: Any) -> Tensor:
    found: Tensor = logits(output)
    return found


def _hit(expected: Any, actual: Any, labels: Tensor) -> Tensor:
    found = _scores(actual)
    return 100.0 * (found.argmax(-1) == labels.to(found.device))


def _agreeing(expected: Any, actual: Any, labels: Any) -> Tensor:
    found, wanted = (_scores(output) for output in (actual, expected))
    return 100.0 * (found.argmax(-1) == wanted.argmax(-1))


@task
@dataclass(frozen=True)
class Classification:
    """A network whose output, or whose output's `logits`, scores classes: (inputs, classes)."""

    name: ClassVar[str] = "classification"
    unit: ClassVar[str] = "images"
    enough: ClassVar[int] = 256
    positional: ClassVar[bool] = True
    bundled: ClassVar[tuple[str, str]] = ("bundled:cifar10-calibration", "bundled:cifar10-test")
    cannot: ClassVar[Mapping[str, str]] = {
        "tasks": "--tasks asks questions of a language model, and this network classifies. Leave it out.",
        "generate": "generate: this network classifies, and writes no text. Leave it to a language model.",
        "picture": "--picture draws boxes, and this network classifies. Leave it out.",
    }

    @property
    def objectives(self) -> Mapping[str, Objective]:
        return {
            "top1": Objective(
                "top-1 accuracy, %", lambda items, network: Mean(_hit, share=True), labeled=True, share=True
            ),
            "kl": divergence(self),
            "agreement": Objective(
                "agreement with the original, %",
                lambda items, network: Mean(_agreeing, share=True),
                compares=True,
                share=True,
            ),
        }

    def drawing(self, size: int, generator: Generator) -> Drawing:
        """Sample a class from each input's softmax: p/E is largest at a class drawn from p, for E exponential."""
        kept: list[Tensor] = []

        def log_probability(output: Any, places: Tensor) -> Tensor:
            scores = logits(output)
            if not kept:
                kept.append(torch.empty(size, scores.shape[-1]).exponential_(generator=generator))
            drawn = (scores.detach().softmax(-1).cpu() / kept[0][places]).argmax(-1, keepdim=True)
            found: Tensor = scores.log_softmax(-1).gather(-1, drawn.to(scores.device)).sum()
            return found

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

    def inputs(self, source: str) -> Items:
        """Return the images of a folder."""
        return list_images(source)

    def labeled(self, source: str, annotations: Path | None, network: Described) -> Items:
        """Return the images of a folder with their classes, from its sub-folders."""
        if annotations is not None:
            raise UsageError(f"{network.spec} classifies, and has no use for boxes. Leave --annotations out.")
        return self.named(list_images(source), network)

    def named(self, items: Items, network: Described) -> Items:
        """Return the images with the network's class numbers as labels, if folders have names."""
        return match_classes(items, network.class_names, network.class_ids, network.spec)

    def objective(self, items: Items) -> str:
        """Return accuracy, or KL without labels."""
        return "top1" if items.labeled else "kl"

    def front(self, items: Items) -> str:
        """Return accuracy, or agreement without labels."""
        return "top1" if items.labeled else "agreement"

    def load(self, item: Item) -> Any:
        """Load the image in RGB."""
        return read_image(item)

    def metric(self, items: Items, network: Described) -> Metric:
        """Return the accuracy of both networks."""
        return Accuracy()

    def row(self, inputs: Any, number: int, place: int) -> str | None:
        """Return None: patches of an image have no names."""
        return None

    def right(self, output: Any, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return whether the best class is the label, and the label's log-probability."""
        found = logits(output).cpu()
        check_labels(labels, *found.shape)
        return found.argmax(-1) == labels, -F.cross_entropy(found, labels, reduction="none")

    def example(self, item: Item, ann: Any, snn: Any, items: Items, network: Described) -> dict[str, Any]:
        """Return the image, its class, and both networks' best classes."""
        names = network.class_names or items.class_names
        best = {key: _best(output, names) for key, output in (("ann", ann), ("snn", snn))}
        return {
            "label": None if item.label is None else f"label {_class(item.label, names)}",
            "pictures": {} if item.content is not None else {"input": thumbnail(read_image(item))},
            "agree": not bool(self.differences(ann, snn).any()),
            **best,
            "text": [
                f"{key.upper()} " + ", ".join(f"{name} {100 * p:.1f} %" for name, p in found)
                for key, found in best.items()
            ],
        }

    def picture(self, items: Items, metric: Metric) -> bytes:
        """Return nothing: there are no boxes to draw."""
        raise UsageError(self.cannot["picture"])

    @staticmethod
    def summary(evaluation: Mapping[str, Any], published: float | None = None) -> Summary:
        """Summarize top-1 and top-5 of both networks, agreement and KL."""
        both, images = tuple(evaluation[key] for key in ("ann", "snn")), evaluation["images"]
        agreement, kl = evaluation["agreement"], evaluation["kl"]
        known = both[1]["top1"] is not None
        stated = "" if published is None else f"; published {published:.1f} %"
        difference, divergence = _difference(evaluation), beside(evaluation, "kl", 4)
        accuracy = (
            "top-1 accuracy",
            " → ".join(f"{row['top1']:.1f}" for row in both) + " %" if known else "",
            f"original → spiking, {images} images{stated}; {difference}",
        )
        alike = beside(evaluation, "agreement")
        same = (
            "agreement",
            f"{agreement:.1f} %",
            f"same answer as the original{alike}; KL {kl:.3f} nats{divergence}",
        )
        return Summary(
            title="Accuracy" if known else "Agreement with the original",
            networks=("ann", "snn"),
            table=Table(
                ("top-1 %", "95 %", "top-5 %", "95 %"),
                tuple(
                    (
                        row["top1"],
                        span(evaluation, f"{key}.top1"),
                        row["top5"],
                        span(evaluation, f"{key}.top5"),
                    )
                    for key, row in zip(("ann", "snn"), both, strict=True)
                ),
            ),
            note="; ".join(
                filter(
                    None,
                    (
                        f"agreement {agreement:.2f} %{alike}, KL {kl:.4f} nats{divergence}, {images} images",
                        difference,
                    ),
                )
            ),
            cards=(accuracy, same) if known else (same,),
            published=""
            if published is None
            else f"published top-1 of these weights: {published:.2f} % (on the whole test set)",
        )

    @staticmethod
    def columns(evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """Top-1 of both networks, agreement and KL."""
        top1 = {
            f"{key.upper()} top-1 %": Figure(evaluation[key]["top1"], 2, span(evaluation, f"{key}.top1"))
            for key in ("ann", "snn")
        }
        return {
            **top1,
            "agreement %": Figure(evaluation["agreement"], 2, span(evaluation, "agreement")),
            "KL nats": Figure(evaluation["kl"], 4, span(evaluation, "kl", 4)),
        }

    @staticmethod
    def headline(evaluation: Mapping[str, Any], labeled: bool = True) -> Headline:
        """Return top-1, or agreement without labels."""
        ann, snn = (evaluation[key]["top1"] for key in ("ann", "snn"))
        if labeled and snn is not None:
            bounds, paired = (bounds_of(evaluation, name) for name in ("snn.top1", "difference"))
            return Headline("top-1 accuracy, %", ann, snn, evaluation.get("standard_error"), bounds, paired)
        bounds = bounds_of(evaluation, "agreement")
        return Headline("agreement with the original, %", None, evaluation["agreement"], bounds=bounds)


def _difference(evaluation: Mapping[str, Any]) -> str:
    """Spiking minus original on the same images, with its interval; nothing without labels."""
    value = evaluation.get("difference")
    if value is None:
        return ""
    shown = f"{value:+.1f}".replace("-", "−")
    return f"difference {shown} points{beside(evaluation, 'difference', sign=True)}"


def _class(index: int, names: tuple[str, ...] | None) -> str:
    return names[index] if names is not None and index < len(names) else f"class {index}"


def _best(output: Any, names: tuple[str, ...] | None) -> list[list[Any]]:
    values, classes = logits(output)[0].softmax(-1).topk(min(BEST, logits(output).shape[-1]))
    return [[_class(int(c), names), float(v)] for v, c in zip(values, classes, strict=True)]
