"""Embedding: a text becomes a direction, and texts of similar meaning have similar directions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from onespike.errors import DataError
from onespike.tasks import intervals
from onespike.tasks.base import NETWORKS, Objective, Score, Task, refuse_nan, task
from onespike.tasks.inputs import Item, Items
from onespike.tasks.intervals import span, stated
from onespike.tasks.summaries import Summary, Table
from onespike.tasks.text import documents

ALIKE = 0.99  # two embeddings are the same answer from this cosine on


class Text(NamedTuple):
    """A text to embed; for a pair, which of the pairs, and the given similarity of its texts."""

    text: str
    pair: int | None = None
    score: float | None = None


def texts(source: str) -> Items:
    """Return the lines of a text file, or the texts of a table of pairs: all first texts, then all second texts."""
    firsts, seconds = list[tuple[str, Text]](), list[tuple[str, Text]]()
    for number, document in enumerate(documents(source)):
        if document.other is None:
            lines = enumerate(map(str.strip, document.text.splitlines()), 1)
            firsts += [(f"{document.name}:{place}", Text(line)) for place, line in lines if line]
        else:
            firsts.append((f"{document.name}a", Text(document.text, number, document.score)))
            seconds.append((f"{document.name}b", Text(document.other, number, document.score)))
    return Items.read(source, [(name, text, text.text.encode()) for name, text in firsts + seconds])


def vectors(output: Any) -> Tensor:
    """Return embeddings as directions: (inputs, dimensions), each of length 1."""
    if isinstance(output, Tensor) and output.dim() == 2:
        return F.normalize(output, dim=-1)
    raise DataError("the network's output is no embedding of shape (inputs, dimensions). Give an encoder.")


def cosines(expected: Any, actual: Any, labels: Any = None) -> Tensor:
    return (vectors(expected) * vectors(actual)).sum(1)


class Similarity:
    """Cosine of both networks' embeddings, agreement on the nearest other text, and Spearman on scored pairs."""

    def __init__(self, texts: Mapping[int, Text]) -> None:
        self.texts = texts
        self.rows: dict[str, dict[int, Tensor]] = {"ann": {}, "snn": {}}

    def update(self, ann: Any, snn: Any, labels: Tensor) -> None:
        """Add embeddings of the texts with these numbers."""
        for name, output in (("ann", ann), ("snn", snn)):
            rows = vectors(output).detach().double().cpu()
            refuse_nan(rows, name, "this text")
            self.rows[name] |= {int(n): row for n, row in zip(labels, rows, strict=True)}

    def merge(self, other: Similarity) -> None:
        for name, rows in other.rows.items():
            self.rows[name] |= rows

    def compute(self) -> dict[str, Any]:
        """Return `{"cosine", "retrieval", "pair_spearman", "ann": {"spearman"}, "snn": {"spearman"}, …}`."""
        order = sorted(self.rows["ann"])
        ann, snn = (torch.stack([self.rows[name][n] for n in order]) for name in NETWORKS)
        cosine, numbers = (ann * snn).sum(1), defaultdict[int | None, list[int]](list)
        mean, error = float(cosine.mean()), intervals.mean_error(cosine.tolist())
        bounds = {"cosine": intervals.interval(mean, error)}
        nearest = None
        if len(order) > 2:  # the share of texts whose nearest other text is the same for both networks
            first, second = ((x @ x.T).fill_diagonal_(-2.0).argmax(1) for x in (ann, snn))
            nearest = 100 * float((first == second).double().mean())
            bounds["retrieval"] = intervals.share_interval(nearest, len(order))
        for number in order:
            numbers[self.texts[number].pair].append(number)
        pairs = [(a, b) for pair, (a, *rest) in numbers.items() if pair is not None for b in rest]
        scores = [score for _, b in pairs if (score := self.texts[b].score) is not None]
        alike = {name: [float(rows[a] @ rows[b]) for a, b in pairs] for name, rows in self.rows.items()}
        ranked: dict[str, float | None] = dict.fromkeys(("pair_spearman", "ann.spearman", "snn.spearman"))
        if len(pairs) > 2:
            ranked["pair_spearman"] = spearman(alike["ann"], alike["snn"])
            if len(scores) == len(pairs):
                ranked |= {f"{name}.spearman": spearman(scores, values) for name, values in alike.items()}
        bounds |= {name: intervals.correlation_interval(r, len(pairs)) for name, r in ranked.items()}
        return {
            "task": Embedding.name,
            "cosine": mean,
            "cosine_error": error,
            "worst": float(cosine.min()),
            "retrieval": nearest,
            "pair_spearman": ranked["pair_spearman"],
            **{name: {"spearman": ranked[f"{name}.spearman"]} for name in NETWORKS},
            "texts": len(order),
            "pairs": len(pairs),
            "intervals": intervals.certain(bounds),
        }


def spearman(a: Sequence[float] | Tensor, b: Sequence[float] | Tensor) -> float | None:
    """Return the rank correlation, with ranks of equal values averaged; None if one side is constant."""
    rows = []
    for values in (a, b):
        exact = torch.as_tensor(values, dtype=torch.float64)
        _, places, counts = exact.unique(return_inverse=True, return_counts=True)
        rows.append((counts.cumsum(0) - (counts - 1) / 2).double()[places])
    ranks = torch.stack(rows)
    return None if (ranks == ranks[:, :1]).all(1).any() else round(float(ranks.corrcoef()[0, 1]), 12)


@task
@dataclass(frozen=True)
class Embedding(Task):
    """A network whose output is one vector per text: (inputs, dimensions)."""

    name = "embedding"
    unit = "texts"
    positional = False
    verb = "embeds texts"
    scored_by = (("Spearman with scores", "spearman"),)
    compared_by = ("cosine with the original", "cosine")
    listed = (
        ("cosine", "cosine", 4),
        ("same nearest text %", "retrieval", 1),
        ("{} Spearman", "spearman", 4),
    )
    aims: ClassVar[Mapping[str, Objective]] = {
        "cosine": Objective(compared_by[0], lambda items: Score(cosines))
    }

    def drawn(self, output: Any, sources: Sequence[Generator]) -> Tensor:
        """Sample a point near each embedding, with normal noise: its information is the squared distance's curvature."""
        rows = vectors(output)
        noise = [torch.randn(rows.shape[1:], generator=source) for source in sources]
        return (torch.stack(noise).to(rows) * rows).sum()  # log N up to terms without a gradient

    def divergence(self, expected: Any, actual: Any) -> Tensor:
        """Return 1 − cosine, half the squared distance of the two directions: their KL under noise of deviation 1."""
        return 0.5 * (vectors(expected) - vectors(actual)).square().sum()

    def lost(self, expected: Any, actual: Any) -> Tensor:
        return 1 - cosines(expected, actual)

    def differences(self, expected: Any, actual: Any) -> Tensor:
        return (cosines(expected, actual) < ALIKE).float()

    def inputs(self, source: str) -> Items:
        return texts(source)

    def load(self, item: Item) -> Any:
        return item.content.text

    def metric(self, items: Items) -> Similarity:
        return Similarity(items.contents)

    def example(self, item: Item, ann: Any, snn: Any, items: Items) -> dict[str, Any]:
        cosine, text = float(cosines(ann, snn).sum()), item.content.text
        label = f"“{text if len(text) < 200 else text[:200] + '…'}”"
        return {"label": label, "pictures": {}, "agree": cosine >= ALIKE, "text": [f"cosine {cosine:.4f}"]}

    @staticmethod
    def summary(evaluation: Mapping[str, Any], published: float | None = None) -> Summary:
        cosine, retrieval, paired = (evaluation[name] for name in ("cosine", "retrieval", "pair_spearman"))
        note = f"cosine with the original {stated(evaluation, cosine, 'cosine', 4)}, worst {evaluation['worst']:.4f}"
        if retrieval is not None:
            note += f", same nearest text {stated(evaluation, retrieval, 'retrieval', 1, ' %')}"
        if paired is not None:
            similar = stated(evaluation, paired, "pair_spearman", 4)
            note += f", Spearman of pair similarities with the original's {similar}"
        rows = ((evaluation[key]["spearman"], span(evaluation, f"{key}.spearman", 4)) for key in NETWORKS)
        return Summary(
            title="Similarity",
            table=Table(("Spearman with scores", "95 %"), tuple(rows), digits=4),
            note=f"{note}; {evaluation['texts']} texts",
            examples="Texts whose embeddings are furthest apart come first.",
        )
