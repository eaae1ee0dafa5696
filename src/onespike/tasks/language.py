"""Language: the next token at every position of a text, drawn from a softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

from onespike.errors import UsageError
from onespike.tasks.base import Metric, Objective, Task, refusals, task
from onespike.tasks.inputs import Item, Items
from onespike.tasks.intervals import beside, change, span
from onespike.tasks.perplexity import Perplexity, scores_of, window_perplexity
from onespike.tasks.scores import NETWORKS, Mean, relative_entropy
from onespike.tasks.summaries import Summary, Table, decimal
from onespike.tasks.text import Tokenizer, pack

BEST, BEFORE = 3, 24
"""Next tokens that an example shows per network, and tokens of the text before them."""
ALIKE = 0.1
"""Two networks write the same if at most this share of next tokens differs."""


def _agreeing(expected: Any, actual: Any, labels: Any) -> Tensor:
    same = scores_of(expected).argmax(-1) == scores_of(actual).argmax(-1)
    return 100 * same.double().mean(1)


def _unlike(expected: Any, actual: Any) -> Tensor:
    pairs = zip(scores_of(expected), scores_of(actual), strict=True)
    return torch.stack([relative_entropy(a, b).mean() for a, b in pairs])


@task
@dataclass(frozen=True)
class Language(Task):
    """A network whose output's `logits` score the next token at every position: (inputs, positions, tokens)."""

    tokenizer: Tokenizer
    length: int  # tokens per window
    context: int | None = (
        None  # the most tokens that the network can read, or read and write; None if unknown
    )

    name = "language"
    unit = "windows"
    enough = 32
    positional = False
    cannot = refusals("writes", "annotations", "normalization", "picture")
    scored_by = (("perplexity per token", "perplexity"),)
    compared_by = ("next tokens as the original, %", "agreement")
    listed = (
        ("{} perplexity", "perplexity", 3),
        ("next token as the original %", "agreement", 2),
        ("KL nats per token", "kl", 4),
    )
    aims: ClassVar[Mapping[str, Objective]] = {
        # Not the default of a search: by chance it may fall below the original's.
        "perplexity": Objective(
            scored_by[0][0], lambda items: window_perplexity(items.contents), maximize=False, labeled=True
        ),
        "agreement": Objective(compared_by[0], lambda items: Mean(_agreeing), compares=True),
    }

    def drawn(self, output: Any, sources: Sequence[Generator]) -> Tensor:
        """Sample a next token at every position, from that position's softmax."""
        terms = []
        for scores, source in zip(scores_of(output), sources, strict=True):
            token = torch.multinomial(scores.detach().softmax(-1).cpu(), 1, generator=source)
            terms.append(scores.log_softmax(-1).gather(-1, token.to(scores.device)).sum())
        return torch.stack(terms).sum()

    def divergence(self, expected: Any, actual: Any) -> Tensor:
        """Return KL of the next token, averaged over positions."""
        return _unlike(expected, actual).sum()

    def lost(self, expected: Any, actual: Any) -> Tensor:
        """Return the relative rise of the perplexity on text drawn from the original network: exp(KL) − 1."""
        return _unlike(expected, actual).expm1()

    def differences(self, expected: Any, actual: Any) -> Tensor:
        """Return the share of positions with another best token; a window with at most a tenth counts as the same."""
        parted = (scores_of(expected).argmax(-1) != scores_of(actual).argmax(-1)).float().mean(1)
        return torch.where(parted > ALIKE, parted, 0.0)

    def inputs(self, source: str) -> Items:
        return pack(source, self.tokenizer, self.length)

    def typed(self, source: str) -> Items:
        """Return windows of typed text: a short text is one short window."""
        return pack(source, self.tokenizer, self.length, short=True)

    def load(self, item: Item) -> Any:
        return item.content.ids

    def metric(self, items: Items) -> Metric:
        return Perplexity(items.contents)

    def row(self, inputs: Any, number: int, place: int) -> str | None:
        """Return the token there, and whether it is the first."""
        ids = inputs["input_ids"]
        if place >= ids.shape[1]:
            return None
        token = self.tokenizer.decode([int(ids[number, place])])
        return f"{token!r}, the first" if place == 0 else repr(token)

    def prompts(self, texts: Sequence[str], more: int) -> dict[str, Tensor]:
        """Return texts to continue by `more` tokens, as one batch: shorter ones are padded on the left."""
        rows = [self.tokenizer.encode(text)[0] for text in texts]
        for text, ids in zip(texts, rows, strict=True):
            if not ids:
                raise UsageError("generate: the prompt is empty. Give some text.")
            if self.context is not None and len(ids) + more > self.context:
                raise UsageError(
                    f"generate: the prompt {text[:20]!r}… has {len(ids)} tokens, and with {more} more the network's context "
                    f"of {self.context} is full. Give a shorter prompt, or a smaller length=."
                )
        pad = partial(pad_sequence, batch_first=True, padding_side="left")
        each = [torch.tensor(row) for row in rows]
        return {"input_ids": pad(each), "attention_mask": pad([torch.ones_like(ids) for ids in each])}

    def said(self, ids: Tensor | Sequence[int]) -> str:
        """Return the text of tokens, without special tokens."""
        return self.tokenizer.decode(ids.tolist() if isinstance(ids, Tensor) else ids, bare=True)

    def example(self, item: Item, ann: Any, snn: Any, items: Items) -> dict[str, Any]:
        """Return the place of a window where the networks differ most, and what each would write next."""
        first, second = scores_of(ann)[0], scores_of(snn)[0]
        place = int(relative_entropy(first.float(), second.float()).argmax())
        start = max(0, place + 1 - BEFORE)
        before = self.tokenizer.decode(item.content.ids[start : place + 1].tolist())
        best = {"ann": self._best(first[place]), "snn": self._best(second[place])}
        same = int((first.argmax(-1) == second.argmax(-1)).sum())
        text = [f"{same} of {len(first)} next tokens are the same; furthest apart after token {place + 1}:"]
        for key, tokens in best.items():
            text.append(f"{key.upper()} " + ", ".join(f"“{token}” {100 * p:.1f} %" for token, p in tokens))
        label, agree = f"“{'…' if start else ''}{before}”", same == len(first)
        return {"label": label, "pictures": {}, "agree": agree, **best, "text": text}

    def _best(self, scores: Tensor) -> list[list[Any]]:
        values, tokens = scores.softmax(-1).topk(min(BEST, len(scores)))
        return [[self.tokenizer.decode([int(t)]), float(v)] for v, t in zip(values, tokens, strict=True)]

    @staticmethod
    def summary(evaluation: Mapping[str, Any], published: float | None = None) -> Summary:
        """Summarize perplexity by both conventions, bits per byte of both networks, agreement and KL."""
        ann, snn = (evaluation[key]["perplexity"] for key in NETWORKS)
        agreement, kl, gap = evaluation["agreement"], evaluation["kl"], evaluation.get("difference")
        ratio = "" if ann is None or snn is None else f", ×{snn / ann:.3f}"
        same, apart = beside(evaluation, "agreement"), beside(evaluation, "kl", 4)
        difference = "" if gap is None else f", difference {change(evaluation, gap, 'difference', 3)}"
        rows = []
        for key in NETWORKS:
            sure, figures = span(evaluation, f"{key}.perplexity", 3), evaluation[key]
            rows.append((figures["perplexity"], sure, figures["word_perplexity"], figures["bits_per_byte"]))
        size = f"{evaluation['windows']} windows of {evaluation['tokens'] // evaluation['windows']} tokens"
        both = f"{decimal(ann, 2)} → {decimal(snn, 2)}"
        next_token = f"same as the original{same}; KL {kl:.3f} nats per token{apart}"
        return Summary(
            title="Perplexity",
            table=Table(("perplexity per token", "95 %", "per word", "bits per byte"), tuple(rows), digits=3),
            note=f"next token as the original {agreement:.2f} %{same}, KL {kl:.4f} nats per token{apart}{ratio}{difference}; "
            f"{size}; per token as GPTQ counts, per word as lm-eval does",
            cards=(
                ("perplexity", both, f"original → spiking, per token, {size}{difference}"),
                ("next token", f"{agreement:.1f} %", next_token),
            ),
            parts=("token", evaluation["tokens"]),
            examples="Each example is the place of its window where the two networks are furthest apart.",
        )
