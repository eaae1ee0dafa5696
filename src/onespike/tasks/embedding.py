"""Embedding: a text becomes a direction, and texts of similar meaning have similar directions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from onespike.errors import DataError, UsageError
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
    task,
)
from onespike.tasks.base import divergence as divergence_objective
from onespike.tasks.images import Item, Items
from onespike.tasks.intervals import (
    beside,
    bounds_of,
    correlation_interval,
    interval,
    known,
    share_interval,
    span,
)
from onespike.tasks.text import Document, documents

ALIKE = 0.99
"""Two embeddings are the same answer from this cosine on."""


class Text(NamedTuple):
    """A text to embed; for a pair, which of the two, and the given similarity of its texts."""

    text: str
    pair: int | None = None
    score: float | None = None


def texts(source: str) -> Items:
    """Return the lines of a text file, or the texts of a table of pairs: all first texts, then all second texts."""
    firsts, seconds = list[tuple[str, Text]](), list[tuple[str, Text]]()
    for number, document in enumerate(documents(source)):
        if document.ids is not None:
            raise DataError(f"{document.name}: tokens cannot be embedded as texts. Give texts.")
        if document.other is None:
            firsts += [(name, Text(line)) for name, line in _lines(document)]
        else:
            firsts.append((f"{document.name}a", Text(document.text, number, document.score)))
            seconds.append((f"{document.name}b", Text(document.other, number, document.score)))
    items = (
        Item(name, number, Path(source), number, None, text, hashlib.sha256(text.text.encode()).hexdigest())
        for number, (name, text) in enumerate([*firsts, *seconds])
    )
    return Items(source, tuple(items))


def _lines(document: Document) -> list[tuple[str, str]]:
    lines = [line.strip() for line in document.text.splitlines()]
    return [(f"{document.name}:{number}", line) for number, line in enumerate(lines, 1) if line]


def vectors(output: Any) -> Tensor:
    """Return embeddings as directions: (inputs, dimensions), each of length 1."""
    if not isinstance(output, Tensor) or output.dim() != 2:
        raise DataError(
            "the network's output is no embedding of shape (inputs, dimensions). Give an encoder."
        )
    return F.normalize(output, dim=-1)


class Similarity:
    """Cosine of both networks' embeddings, agreement on the nearest other text, and Spearman on scored pairs."""

    def __init__(self, known: Mapping[int, Text]) -> None:
        self.texts = known
        self.found: dict[str, dict[int, Tensor]] = {"ann": {}, "snn": {}}

    def update(self, ann: Any, snn: Any, labels: Tensor | None) -> None:
        """Add both networks' embeddings of the texts with these numbers."""
        if labels is None:
            raise DataError("a text without its number cannot be scored. Give the numbers as labels.")
        for name, output in (("ann", ann), ("snn", snn)):
            rows = vectors(output).detach().double().cpu()
            if bool(rows.isnan().any()):
                raise DataError(f"an embedding of the {name} is NaN. Check its weights, and this text.")
            self.found[name] |= {int(n): row for n, row in zip(labels, rows, strict=True)}

    def merge(self, other: Similarity) -> None:
        """Add what another metric has seen."""
        for name, rows in other.found.items():
            self.found[name] |= rows

    def compute(self) -> dict[str, Any]:
        """Return `{"cosine", "retrieval", "pair_spearman", "ann": {"spearman"}, "snn": {"spearman"}, …}`."""
        order = sorted(self.found["ann"])
        if not order:
            raise DataError("no text was embedded. Give at least one.")
        ann, snn = (torch.stack([self.found[name][n] for n in order]) for name in ("ann", "snn"))
        cosine = (ann * snn).sum(1)
        pairs, scores = self._pairs()
        alike = {name: self._alike(name, pairs) for name in ("ann", "snn")}
        scored = len(pairs) > 2 and len(scores) == len(pairs)
        ranked = {n: spearman(torch.tensor(scores), found) if scored else None for n, found in alike.items()}
        paired = spearman(alike["ann"], alike["snn"]) if len(pairs) > 2 else None
        mean, nearest = float(cosine.mean()), _retrieval(ann, snn)
        error = float(cosine.std() / len(cosine) ** 0.5) if len(cosine) > 1 else None
        correlations = {
            **{f"{name}.spearman": value for name, value in ranked.items()},
            "pair_spearman": paired,
        }
        return {
            "task": Embedding.name,
            "cosine": mean,
            "cosine_error": error,
            "worst": float(cosine.min()),
            "retrieval": nearest,
            "pair_spearman": paired,
            **{name: {"spearman": value} for name, value in ranked.items()},
            "texts": len(order),
            "pairs": len(pairs),
            "intervals": known(
                {
                    "cosine": None if error is None else interval(mean, error),
                    "retrieval": None if nearest is None else share_interval(nearest, len(order)),
                    **{
                        name: None if value is None else correlation_interval(value, len(pairs))
                        for name, value in correlations.items()
                    },
                }
            ),
        }

    def _pairs(self) -> tuple[list[tuple[int, int]], list[float]]:
        """Return the pairs with both texts embedded, and the scores of those that have one."""
        first: dict[int, int] = {}
        pairs, scores = [], []
        for number in sorted(self.found["ann"]):
            text = self.texts[number]
            if text.pair is not None and text.pair in first:
                pairs.append((first[text.pair], number))
                scores += [] if text.score is None else [text.score]
            elif text.pair is not None:
                first[text.pair] = number
        return pairs, scores

    def _alike(self, name: str, pairs: list[tuple[int, int]]) -> Tensor:
        rows = self.found[name]
        return torch.tensor([float(rows[a] @ rows[b]) for a, b in pairs], dtype=torch.float64)


def _retrieval(ann: Tensor, snn: Tensor) -> float | None:
    """Return the share of texts (percent) whose nearest other text is the same for both networks."""
    if len(ann) < 3:
        return None
    nearest = [(x @ x.T).fill_diagonal_(-2.0).argmax(1) for x in (ann, snn)]
    return 100 * float((nearest[0] == nearest[1]).double().mean())


def spearman(a: Tensor, b: Tensor) -> float | None:
    """Return the rank correlation, with ranks of equal values averaged; None if one side is constant.

    >>> spearman(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 3.0, 2.0, 4.0]))
    0.8
    """
    ranks = torch.stack([_ranks(a), _ranks(b)])
    ranks = ranks - ranks.mean(1, keepdim=True)
    norms = ranks.square().sum(1).sqrt()
    return None if not bool((norms > 0).all()) else round(float(ranks.prod(0).sum() / norms.prod()), 12)


def _ranks(values: Tensor) -> Tensor:
    _, places, counts = values.unique(return_inverse=True, return_counts=True)
    upto = counts.cumsum(0)
    ranks: Tensor = (upto - (counts - 1) / 2).double()[places]
    return ranks


@task
@dataclass(frozen=True)
class Embedding:
    """A network whose output is one vector per text: (inputs, dimensions).

    Attributes:
        length: number of tokens after which a text is cut.
    """

    length: int

    name: ClassVar[str] = "embedding"
    unit: ClassVar[str] = "texts"
    enough: ClassVar[int] = 256
    positional: ClassVar[bool] = False
    bundled: ClassVar[tuple[str, str]] = ("", "")
    cannot: ClassVar[Mapping[str, str]] = {
        "tasks": "--tasks asks questions of a language model, and this network embeds texts. Leave it out.",
        "picture": "--picture draws boxes, and this network embeds texts. Leave it out.",
        "normalization": "--mean and --std are for images, and this network reads text. Leave them out.",
        "generate": "generate: this network embeds texts, and writes none. Leave it to a language model.",
    }

    @property
    def objectives(self) -> Mapping[str, Objective]:
        return {
            "kl": divergence_objective(self),
            "cosine": Objective(
                "cosine with the original",
                lambda items, network: Mean(
                    lambda expected, actual, labels: (vectors(expected) * vectors(actual)).sum(1)
                ),
                compares=True,
            ),
        }

    def drawing(self, size: int, generator: Generator) -> Drawing:
        """Sample a point near each embedding, with normal noise: its information is the squared distance's curvature."""
        seeds = torch.randint(2**62, (size,), generator=generator).tolist()

        def log_probability(output: Any, places: Tensor) -> Tensor:
            found = vectors(output)
            sources = [torch.Generator().manual_seed(seeds[place]) for place in places.tolist()]
            noise = torch.stack([torch.randn(found.shape[1:], generator=source) for source in sources])
            return (noise.to(found) * found).sum()  # log N up to terms without a gradient

        return log_probability

    def divergence(self, expected: Any, actual: Any) -> Tensor:
        """Return 1 − cosine, half the squared distance of the two directions: their KL under noise of deviation 1."""
        return 0.5 * (vectors(expected) - vectors(actual)).square().sum()

    def lost(self, expected: Any, actual: Any) -> Tensor:
        """Return 1 minus the cosine of both vectors."""
        return 1 - (vectors(expected) * vectors(actual)).sum(1)

    def differences(self, expected: Any, actual: Any) -> Tensor:
        """Return 1 where the cosine is below 0.99."""
        return ((vectors(expected) * vectors(actual)).sum(1) < ALIKE).float()

    def inputs(self, source: str) -> Items:
        """Return the texts of a file."""
        return texts(source)

    def labeled(self, source: str, annotations: Path | None, network: Described) -> Items:
        """Return the texts of a file, perhaps in pairs with scores."""
        if annotations is not None:
            raise UsageError(f"{network.spec} reads text, and has no use for boxes. Leave --annotations out.")
        return texts(source)

    def named(self, items: Items, network: Described) -> Items:
        """Return the texts: their labels are their numbers."""
        return items

    def objective(self, items: Items) -> str:
        """Return 1 − cosine."""
        return "kl"

    def front(self, items: Items) -> str:
        """Return the cosine."""
        return "cosine"

    def load(self, item: Item) -> Any:
        """Return the text."""
        return item.content.text

    def metric(self, items: Items, network: Described) -> Metric:
        """Return cosine, retrieval agreement, and Spearman on pairs."""
        return Similarity({int(item.label or 0): item.content for item in items})

    def row(self, inputs: Any, number: int, place: int) -> str | None:
        """Return None: a text is known as a whole."""
        return None

    def right(self, output: Any, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return None: an embedding is neither right nor wrong."""
        return None

    def with_length(self, length: int) -> Embedding:
        """Return the same task with texts cut after another number of tokens."""
        return replace(self, length=length)

    def example(self, item: Item, ann: Any, snn: Any, items: Items, network: Described) -> dict[str, Any]:
        """Return the text, and the cosine of its two embeddings."""
        cosine = float((vectors(ann) * vectors(snn)).sum())
        shown = item.content.text if len(item.content.text) < 200 else item.content.text[:200] + "…"
        return {
            "label": f"“{shown}”",
            "pictures": {},
            "agree": cosine >= ALIKE,
            "text": [f"cosine {cosine:.4f}"],
        }

    def picture(self, items: Items, metric: Metric) -> bytes:
        """Return nothing: there are no boxes to draw."""
        raise UsageError(self.cannot["picture"])

    @staticmethod
    def summary(evaluation: Mapping[str, Any], published: float | None = None) -> Summary:
        """Summarize Spearman of both networks if pairs have scores, cosine and retrieval."""
        cosine, worst, retrieval = (evaluation[name] for name in ("cosine", "worst", "retrieval"))
        near, like = beside(evaluation, "retrieval"), beside(evaluation, "pair_spearman", 4)
        same = "" if retrieval is None else f", same nearest text {retrieval:.1f} %{near}"
        paired = evaluation["pair_spearman"]
        similar = (
            ""
            if paired is None
            else f", Spearman of pair similarities with the original's {paired:.4f}{like}"
        )
        sure = beside(evaluation, "cosine", 4)
        return Summary(
            title="Similarity",
            networks=("ann", "snn"),
            table=Table(
                ("Spearman with scores", "95 %"),
                tuple(
                    (evaluation[key]["spearman"], span(evaluation, f"{key}.spearman", 4))
                    for key in ("ann", "snn")
                ),
                digits=4,
            ),
            note=f"cosine with the original {cosine:.4f}{sure}, worst {worst:.4f}{same}{similar}; {evaluation['texts']} texts",
            cards=(
                ("cosine", f"{cosine:.4f}", f"with the original{sure}, {evaluation['texts']} texts{same}"),
            ),
            examples="Texts whose embeddings are furthest apart come first.",
        )

    @staticmethod
    def columns(evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """Cosine, retrieval and Spearman."""
        both = {
            f"{key.upper()} Spearman": Figure(
                evaluation[key]["spearman"], 4, span(evaluation, f"{key}.spearman", 4)
            )
            for key in ("ann", "snn")
        }
        return {
            "cosine": Figure(evaluation["cosine"], 4, span(evaluation, "cosine", 4)),
            "same nearest text %": Figure(evaluation["retrieval"], 1, span(evaluation, "retrieval")),
            **both,
        }

    @staticmethod
    def headline(evaluation: Mapping[str, Any], labeled: bool = True) -> Headline:
        """Return Spearman if pairs have scores, or else the cosine."""
        ann, snn = (evaluation[key]["spearman"] for key in ("ann", "snn"))
        if labeled and snn is not None and ann is not None:
            return Headline("Spearman with scores", ann, snn, bounds=bounds_of(evaluation, "snn.spearman"))
        bounds = bounds_of(evaluation, "cosine")
        return Headline("cosine with the original", None, evaluation["cosine"], bounds=bounds)
