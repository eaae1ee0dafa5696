"""Language: the next token at every position of a text, drawn from a softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from onespike.errors import UsageError
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
from onespike.tasks.intervals import beside, bounds_of, span
from onespike.tasks.perplexity import Perplexity, WindowPerplexity, divergence, scores_of
from onespike.tasks.windows import Tokenizer, pack, pack_short, windows_of

BEST, BEFORE = 3, 24
"""Next tokens that an example shows per network, and tokens of the text before them."""
ALIKE = 0.1
"""Two networks write the same if at most this share of next tokens differs."""


def _agreeing(expected: Any, actual: Any, labels: Any) -> Tensor:
    same = scores_of(expected).argmax(-1) == scores_of(actual).argmax(-1)
    return 100 * same.double().mean(1)


@task
@dataclass(frozen=True)
class Language:
    """A network whose output's `logits` score the next token at every position: (inputs, positions, tokens).

    Attributes:
        tokenizer: turns texts into numbers.
        length: number of tokens per window.
        context: the largest number of tokens that the network can read, or read and write; None if unknown.
    """

    tokenizer: Tokenizer
    length: int
    context: int | None = None

    name: ClassVar[str] = "language"
    unit: ClassVar[str] = "windows"
    enough: ClassVar[int] = 32
    positional: ClassVar[bool] = False
    bundled: ClassVar[tuple[str, str]] = ("", "")
    cannot: ClassVar[Mapping[str, str]] = {
        "picture": "--picture draws boxes, and this network writes. Leave it out.",
        "normalization": "--mean and --std are for images, and this network reads text. Leave them out.",
    }

    @property
    def objectives(self) -> Mapping[str, Objective]:
        return {
            "perplexity": Objective(
                "perplexity per token",
                lambda items, network: WindowPerplexity(windows_of(items)),
                maximize=False,
                labeled=True,
            ),
            "kl": divergence_objective(self),
            "agreement": Objective(
                "next tokens as the original, %", lambda items, network: Mean(_agreeing), compares=True
            ),
        }

    def drawing(self, size: int, generator: Generator) -> Drawing:
        """Sample a next token at every position, from that position's softmax."""
        seeds = torch.randint(2**62, (size,), generator=generator).tolist()

        def log_probability(output: Any, places: Tensor) -> Tensor:
            terms = []
            for scores, place in zip(scores_of(output), places.tolist(), strict=True):
                source = torch.Generator().manual_seed(seeds[place])
                drawn = torch.multinomial(scores.detach().softmax(-1).cpu(), 1, generator=source)
                terms.append(scores.log_softmax(-1).gather(-1, drawn.to(scores.device)).sum())
            return torch.stack(terms).sum()

        return log_probability

    def divergence(self, expected: Any, actual: Any) -> Tensor:
        """Return KL of the next token, averaged over positions."""
        pairs = zip(scores_of(expected), scores_of(actual), strict=True)
        return torch.stack([divergence(a, b).mean() for a, b in pairs]).sum()

    def lost(self, expected: Any, actual: Any) -> Tensor:
        """Return the relative rise of the perplexity on text drawn from the original network: exp(KL) − 1."""
        pairs = zip(scores_of(expected), scores_of(actual), strict=True)
        return torch.stack([divergence(a, b).mean() for a, b in pairs]).expm1()

    def differences(self, expected: Any, actual: Any) -> Tensor:
        """Return the share of positions with another best token; a window with at most a tenth counts as the same."""
        parted = (scores_of(expected).argmax(-1) != scores_of(actual).argmax(-1)).float().mean(1)
        return torch.where(parted > ALIKE, parted, 0.0)

    def inputs(self, source: str) -> Items:
        """Return the windows of a text."""
        return pack(source, self.tokenizer, self.length)

    def typed(self, source: str) -> Items:
        """Return windows of typed text: a short text is one short window."""
        return pack_short(source, self.tokenizer, self.length)

    def labeled(self, source: str, annotations: Path | None, network: Described) -> Items:
        """Return the windows of a text: the text itself says what follows a token."""
        if annotations is not None:
            raise UsageError(f"{network.spec} reads text, and has no use for boxes. Leave --annotations out.")
        return self.inputs(source)

    def named(self, items: Items, network: Described) -> Items:
        """Return the windows: their labels are their numbers."""
        return items

    def objective(self, items: Items) -> str:
        """Return KL: it is steadier than perplexity, which may fall below the original's by chance."""
        return "kl"

    def front(self, items: Items) -> str:
        """Return perplexity."""
        return "perplexity"

    def load(self, item: Item) -> Any:
        """Return the tokens of a window."""
        return item.content.ids

    def metric(self, items: Items, network: Described) -> Metric:
        """Return perplexity of both networks, KL and agreement."""
        return Perplexity(windows_of(items))

    def row(self, inputs: Any, number: int, place: int) -> str | None:
        """Return the token there, and whether it is the first."""
        ids = inputs["input_ids"]
        if place >= ids.shape[1]:
            return None
        token = self.tokenizer.decode([int(ids[number, place])])
        return f"{token!r}, the first" if place == 0 else repr(token)

    def right(self, output: Any, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return None: a window with many tokens is neither right nor wrong."""
        return None

    def with_length(self, length: int) -> Language:
        """Return the same task with windows of another length."""
        return replace(self, length=length)

    def prompts(self, texts: Sequence[str], more: int) -> dict[str, Tensor]:
        """Return texts to continue by `more` tokens, as one batch: shorter ones are padded on the left."""
        found = [self.tokenizer.encode(text)[0] for text in texts]
        for text, ids in zip(texts, found, strict=True):
            if not ids:
                raise UsageError("generate: the prompt is empty. Give --prompt some text.")
            if self.context is not None and len(ids) + more > self.context:
                raise UsageError(
                    f"generate: the prompt {text[:20]!r}… has {len(ids)} tokens, and with {more} more the network's context "
                    f"of {self.context} is full. Give a shorter prompt, or fewer --tokens."
                )
        longest = max(map(len, found))
        padded = torch.tensor([[0] * (longest - len(row)) + row for row in found])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in found])
        return {"input_ids": padded, "attention_mask": mask}

    def said(self, ids: Tensor | Sequence[int]) -> str:
        """Return the text of tokens, without special tokens."""
        return self.tokenizer.decode(ids.tolist() if isinstance(ids, Tensor) else ids, bare=True)

    def example(self, item: Item, ann: Any, snn: Any, items: Items, network: Described) -> dict[str, Any]:
        """Return the place of a window where the networks differ most, and what each would write next."""
        first, second = scores_of(ann)[0], scores_of(snn)[0]
        place = int(divergence(first.float(), second.float()).argmax())
        start = max(0, place + 1 - BEFORE)
        before = self.tokenizer.decode(item.content.ids[start : place + 1].tolist())
        best = {key: self._best(scores[place]) for key, scores in (("ann", first), ("snn", second))}
        same = int((first.argmax(-1) == second.argmax(-1)).sum())
        return {
            "label": f"“{'…' if start else ''}{before}”",
            "pictures": {},
            "agree": same == len(first),
            **best,
            "text": [
                f"{same} of {len(first)} next tokens are the same; furthest apart after token {place + 1}:",
                *(
                    f"{key.upper()} " + ", ".join(f"“{token}” {100 * p:.1f} %" for token, p in found)
                    for key, found in best.items()
                ),
            ],
        }

    def _best(self, scores: Tensor) -> list[list[Any]]:
        values, tokens = scores.softmax(-1).topk(min(BEST, len(scores)))
        return [[self.tokenizer.decode([int(t)]), float(v)] for v, t in zip(values, tokens, strict=True)]

    def picture(self, items: Items, metric: Metric) -> bytes:
        """Return nothing: there are no boxes to draw."""
        raise UsageError(self.cannot["picture"])

    @staticmethod
    def summary(evaluation: Mapping[str, Any], published: float | None = None) -> Summary:
        """Summarize perplexity by both conventions, bits per byte of both networks, agreement and KL."""
        names = ("perplexity", "word_perplexity", "bits_per_byte")
        found = {key: [evaluation[key][name] for name in names] for key in ("ann", "snn")}
        ann, snn, windows = found["ann"][0], found["snn"][0], evaluation["windows"]
        length = evaluation["tokens"] // windows
        ratio = "" if ann is None or snn is None else f", ×{snn / ann:.3f}"
        agreement, kl = evaluation["agreement"], evaluation["kl"]
        same, apart = beside(evaluation, "agreement"), beside(evaluation, "kl", 4)
        gap = evaluation.get("difference")
        difference = (
            ""
            if gap is None
            else f", difference {gap:+.3f}".replace("-", "−") + beside(evaluation, "difference", 3, sign=True)
        )
        return Summary(
            title="Perplexity",
            networks=("ann", "snn"),
            table=Table(
                ("perplexity per token", "95 %", "per word", "bits per byte"),
                tuple(
                    (row[0], span(evaluation, f"{key}.perplexity", 3), *row[1:]) for key, row in found.items()
                ),
                digits=3,
            ),
            note=f"next token as the original {agreement:.2f} %{same}, KL {kl:.4f} nats per token{apart}{ratio}{difference}; "
            f"{windows} windows of {length} tokens; per token as GPTQ counts, per word as lm-eval does",
            cards=(
                (
                    "perplexity",
                    " → ".join("–" if p is None else f"{p:.2f}" for p in (ann, snn)),
                    f"original → spiking, per token, {windows} windows of {length} tokens{difference}",
                ),
                (
                    "next token",
                    f"{agreement:.1f} %",
                    f"same as the original{same}; KL {kl:.3f} nats per token{apart}",
                ),
            ),
            parts=("token", evaluation["tokens"]),
            examples="Each example is the place of its window where the two networks are furthest apart.",
        )

    @staticmethod
    def columns(evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """Perplexity of both networks, agreement and KL."""
        both = {
            f"{key.upper()} perplexity": Figure(
                evaluation[key]["perplexity"], 3, span(evaluation, f"{key}.perplexity", 3)
            )
            for key in ("ann", "snn")
        }
        return {
            **both,
            "next token as the original %": Figure(evaluation["agreement"], 2, span(evaluation, "agreement")),
            "KL nats per token": Figure(evaluation["kl"], 4, span(evaluation, "kl", 4)),
        }

    @staticmethod
    def headline(evaluation: Mapping[str, Any], labeled: bool = True) -> Headline:
        """Return perplexity per token."""
        ann, snn = (evaluation[key]["perplexity"] for key in ("ann", "snn"))
        if labeled:
            bounds, paired = (bounds_of(evaluation, name) for name in ("snn.perplexity", "difference"))
            return Headline(
                "perplexity per token", ann, snn, evaluation.get("standard_error"), bounds, paired
            )
        bounds = bounds_of(evaluation, "agreement")
        return Headline("next tokens as the original, %", None, evaluation["agreement"], bounds=bounds)
