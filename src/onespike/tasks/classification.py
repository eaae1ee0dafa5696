"""Classification: accuracy of both networks, and how far the spiking one is from the original."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from onespike.errors import DataError


class Classification:
    """Top-1, top-5, agreement (percent) and the mean KL(ann‖snn) of the class probabilities (nats).

    >>> import torch
    >>> task = Classification()
    >>> task.update(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))
    >>> scores = task.compute()
    >>> scores["ann"]["top1"], scores["snn"]["top1"], scores["agreement"]
    (100.0, 50.0, 50.0)
    """

    def __init__(self) -> None:
        self.images = 0
        self.agreeing = 0
        self.divergence = 0.0
        self.labelled = True
        self.hits = {"ann": {"top1": 0, "top5": 0}, "snn": {"top1": 0, "top5": 0}}

    def update(self, ann: Tensor, snn: Tensor, labels: Tensor | None) -> None:
        """Take in logits of shape (images, classes) and the labels; without labels there is no accuracy."""
        count, classes = ann.shape
        ann, snn = ann.detach().double(), snn.detach().double()
        for network, logits in (("original", ann), ("spiking", snn)):
            if bool(logits.isnan().any()):  # −∞ is how a class is masked out
                raise DataError(
                    f"the output of the {network} network is NaN. "
                    "Check its weights, and the images of this batch."
                )
        if labels is None:
            self.labelled = False
        else:
            labels = labels.to(ann.device)
            if count and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
                wrong = next(int(y) for y in labels if not 0 <= y < classes)
                raise DataError(
                    f"the data has label {wrong}, and the network has {classes} classes (0 to {classes - 1}). "
                    "Use a data folder with the classes that the network was trained for."
                )
            for hits, logits in ((self.hits["ann"], ann), (self.hits["snn"], snn)):
                best = logits.topk(min(5, classes)).indices == labels[:, None]
                hits["top1"] += int(best[:, 0].sum())
                hits["top5"] += int(best.any(1).sum())
        self.images += count
        self.agreeing += int((ann.argmax(1) == snn.argmax(1)).sum())
        log_p, log_q = ann.log_softmax(1), snn.log_softmax(1)
        # A class of probability 0 adds nothing, also where the other network gives it 0 too (0 · ∞).
        terms = log_p.exp() * (log_p - log_q)
        self.divergence += float(terms.masked_fill(log_p.exp() == 0, 0).sum())

    def merge(self, other: Classification) -> None:
        """Take in what another one has seen."""
        self.images += other.images
        self.agreeing += other.agreeing
        self.divergence += other.divergence
        self.labelled = self.labelled and other.labelled
        for network, hits in other.hits.items():
            for name, number in hits.items():
                self.hits[network][name] += number

    def compute(self) -> dict[str, Any]:
        """`{"ann": {"top1", "top5"}, "snn": {…}, "agreement", "kl", "images"}`; accuracies None without labels."""
        if not self.images:
            raise DataError("no image was scored. Give a data folder with at least one image.")

        def percent(hits: int) -> float:
            return 100 * hits / self.images

        accuracies = {
            network: {name: percent(hits) if self.labelled else None for name, hits in scores.items()}
            for network, scores in self.hits.items()
        }
        return {
            **accuracies,
            "agreement": percent(self.agreeing),
            "kl": self.divergence / self.images,
            "images": self.images,
        }


class Paired(Classification):
    """Classification that also says how sure the difference between the two networks is, image by image.

    >>> import torch
    >>> task = Paired()
    >>> right, wrong = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> for spiking in (right, wrong, right, right):
    ...     task.update(right, spiking, torch.tensor([0]))
    >>> scores = task.compute()
    >>> scores["difference"], round(scores["standard_error"], 1)
    (-25.0, 21.7)
    """

    def __init__(self) -> None:
        super().__init__()
        self.gained = self.lost = 0

    def update(self, ann: Tensor, snn: Tensor, labels: Tensor | None) -> None:
        super().update(ann, snn, labels)
        if labels is not None:
            before, after = ((x.argmax(1) == labels.to(x.device)) for x in (ann, snn))
            self.gained += int((after & ~before).sum())
            self.lost += int((before & ~after).sum())

    def merge(self, other: Classification) -> None:
        super().merge(other)
        if isinstance(other, Paired):
            self.gained += other.gained
            self.lost += other.lost

    def compute(self) -> dict[str, Any]:
        scores = super().compute()
        if not self.labelled:
            return {**scores, "difference": None, "standard_error": None}
        mean = (self.gained - self.lost) / self.images
        variance = (self.gained + self.lost) / self.images - mean**2
        return {
            **scores,
            "difference": 100 * mean,
            "standard_error": 100 * (variance / self.images) ** 0.5,
        }
