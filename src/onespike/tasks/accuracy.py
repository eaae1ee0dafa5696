"""Top-1, top-5, agreement and KL of both networks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from onespike.errors import DataError
from onespike.runtime.batches import logits
from onespike.tasks.intervals import interval, known, paired_interval, share_interval


def check_labels(labels: Any, inputs: int, classes: int) -> None:
    """Refuse labels that are not one class number per input.

    >>> import torch
    >>> check_labels(torch.eye(3), 3, 3)
    Traceback (most recent call last):
    onespike.errors.DataError: the labels of 3 inputs have shape (3, 3). Give one class number per input; of one-hot rows, \
labels.argmax(1).
    """
    if not isinstance(labels, Tensor) or labels.shape != (inputs,):
        form = (
            f"shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else f"type {type(labels).__name__}"
        )
        raise DataError(
            f"the labels of {inputs} inputs have {form}. Give one class number per input; of one-hot rows, labels.argmax(1)."
        )
    if inputs and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        wrong = next(int(y) for y in labels if not 0 <= y < classes)
        raise DataError(
            f"the data has label {wrong}, and the network has {classes} classes (0 to {classes - 1}). "
            "Use a data folder with the classes that the network was trained for."
        )


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
        self.images = self.agreeing = self.gained = self.lost = 0
        self.divergence, self.divergence_squares = 0.0, 0.0
        self.labeled = True
        self.hits = {"ann": {"top1": 0, "top5": 0}, "snn": {"top1": 0, "top5": 0}}

    def update(self, ann: Any, snn: Any, labels: Tensor | None) -> None:
        """Add logits of shape (images, classes) and the labels; without labels there is no accuracy."""
        ann, snn = (logits(output).detach().double() for output in (ann, snn))
        count, classes = ann.shape
        for network, found in (("original", ann), ("spiking", snn)):
            if bool(found.isnan().any()):  # −∞ masks out a class
                raise DataError(
                    f"the output of the {network} network is NaN. "
                    "Check its weights, and the images of this batch."
                )
        if labels is None:
            self.labeled = False
        else:
            check_labels(labels, count, classes)
            self._hits(ann, snn, labels.to(ann.device), classes)
        self.images += count
        self.agreeing += int((ann.argmax(1) == snn.argmax(1)).sum())
        log_p, log_q = ann.log_softmax(1), snn.log_softmax(1)
        # A class of probability 0 adds nothing, even if the other network also gives it 0 (0 · ∞).
        terms = log_p.exp() * (log_p - log_q)
        terms = terms.masked_fill(log_p.exp() == 0, 0)
        self.divergence += float(terms.sum())
        self.divergence_squares += float(terms.sum(1).double().square().sum())

    def _hits(self, ann: Tensor, snn: Tensor, labels: Tensor, classes: int) -> None:
        first = []
        for network, found in (("ann", ann), ("snn", snn)):
            best = found.topk(min(5, classes)).indices == labels[:, None]
            self.hits[network]["top1"] += int(best[:, 0].sum())
            self.hits[network]["top5"] += int(best.any(1).sum())
            first.append(best[:, 0])
        before, after = first
        self.gained += int((after & ~before).sum())
        self.lost += int((before & ~after).sum())

    def merge(self, other: Accuracy) -> None:
        """Add what another metric has seen."""
        for name in ("images", "agreeing", "gained", "lost", "divergence", "divergence_squares"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.labeled = self.labeled and other.labeled
        for network, hits in other.hits.items():
            for name, number in hits.items():
                self.hits[network][name] += number

    def compute(self) -> dict[str, Any]:
        """Return `{"ann": {"top1", "top5"}, "snn": {…}, "agreement", "kl", …}`; accuracies are None without labels."""
        if not self.images:
            raise DataError("no image was scored. Give a data folder with at least one image.")

        def percent(hits: int) -> float:
            return 100 * hits / self.images

        mean = (self.gained - self.lost) / self.images
        kl = self.divergence / self.images
        kl_variance = max(self.divergence_squares / self.images - kl**2, 0.0)
        variance = (self.gained + self.lost) / self.images - mean**2
        error, kl_error = 100 * (variance / self.images) ** 0.5, (kl_variance / self.images) ** 0.5
        return {
            "task": "classification",
            **{
                network: {name: percent(hits) if self.labeled else None for name, hits in scores.items()}
                for network, scores in self.hits.items()
            },
            "agreement": percent(self.agreeing),
            "kl": kl,
            "kl_standard_error": kl_error,
            "images": self.images,
            "difference": 100 * mean if self.labeled else None,
            "standard_error": error if self.labeled else None,
            "intervals": known(
                {
                    **{
                        f"{network}.{name}": share_interval(percent(hits), self.images)
                        if self.labeled
                        else None
                        for network, scores in self.hits.items()
                        for name, hits in scores.items()
                    },
                    "difference": paired_interval(self.gained, self.lost, self.images)
                    if self.labeled
                    else None,
                    "agreement": share_interval(percent(self.agreeing), self.images),
                    "kl": interval(kl, kl_error, least=0.0),
                }
            ),
        }
