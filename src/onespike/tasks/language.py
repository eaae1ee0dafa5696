"""Language: the next token at every position of a text, drawn from a softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

from onespike.errors import DataError, UsageError
from onespike.runtime.batches import logits
from onespike.tasks.base import NETWORKS, Objective, Score, Task, refuse_nan, relative_entropy, task
from onespike.tasks.inputs import Item, Items
from onespike.tasks.intervals import Bounds, certain, interval, mean_error, ratio_error, span, stated
from onespike.tasks.summaries import Summary, Table, likeliest
from onespike.tasks.text import Tokenizer, pack

BEFORE = 24  # tokens of the text that an example shows before the next one
ALIKE = 0.1  # two networks write the same if at most this share of next tokens differs
POSITIONS = 256  # positions that are scored at a time: their probabilities take 256 times the vocabulary


def scores_of(output: Any) -> Tensor:
    scores: Tensor = logits(output)
    if isinstance(scores, Tensor) and scores.dim() == 3:
        return scores
    raise DataError("the output has no scores of shape (inputs, positions, tokens). Give a language model.")


def surprise(scores: Tensor, window: Tensor) -> Tensor:
    """Return −log p of every token of a window but the first: by float32 for every network, then double."""
    targets = window[1:].to(scores.device)
    parts = zip(scores[: len(targets)].split(POSITIONS), targets.split(POSITIONS), strict=True)
    logs = [s.float().log_softmax(-1).gather(-1, t[:, None])[:, 0].double() for s, t in parts]
    return -torch.cat(logs).cpu()


class Perplexity:
    """Perplexity of both networks, the KL of each next token (nats) and the agreement on the best one (percent).

    Perplexity is exp of the mean over windows of −log p of every token but the first, as in the tables of GPTQ.
    """

    def __init__(self, windows: Mapping[int, Tensor]) -> None:
        self.windows = windows
        self.rows: list[dict[str, float]] = []

    def update(self, ann: Any, snn: Any, labels: Tensor) -> None:
        """Add scores of the windows with these numbers."""
        scores = (scores_of(output).detach() for output in (ann, snn))
        for number, *outputs in zip(labels.tolist(), *scores, strict=True):
            window = self.windows[number]
            row = {"positions": len(window), "kl": 0.0, "same": 0.0}
            for name, scores in zip(NETWORKS, outputs, strict=True):
                surprises = surprise(scores, window)
                refuse_nan(surprises, name, "this text")
                row[name] = float(surprises.mean())
            for first, second in zip(*(scores.split(POSITIONS) for scores in outputs), strict=True):
                row["kl"] += float(relative_entropy(first.float(), second.float()).double().sum())
                row["same"] += 100.0 * int((first.argmax(-1) == second.argmax(-1)).sum())
            self.rows.append(row)

    def merge(self, other: Perplexity) -> None:
        self.rows += other.rows

    def compute(self) -> dict[str, Any]:
        """Return `{"ann": {"perplexity"}, "snn": {…}, "agreement", "kl", …}`."""
        columns = {name: [row[name] for row in self.rows] for name in self.rows[0]}
        positions, means = columns["positions"], [columns[name] for name in NETWORKS]
        ann, snn = (_exp(fmean(each)) for each in means)
        difference = error = None
        if ann is not None and snn is not None:
            pairs = zip(*means, strict=True)
            # to first order, paired window by window
            difference, error = snn - ann, mean_error([snn * after - ann * before for before, after in pairs])
        kl, agreement = (math.fsum(columns[each]) / sum(positions) for each in ("kl", "same"))
        intervals = {
            **{f"{name}.perplexity": exp_interval(columns[name]) for name in NETWORKS},
            "difference": interval(difference, error),
            "kl": interval(kl, ratio_error(columns["kl"], positions), least=0.0),
            "agreement": interval(agreement, ratio_error(columns["same"], positions)),
        }
        return {
            "task": Language.name,
            "ann": {"perplexity": ann},
            "snn": {"perplexity": snn},
            "agreement": agreement,
            "kl": kl,
            "windows": len(self.rows),
            "tokens": sum(positions),
            "difference": difference,
            "standard_error": error,
            "intervals": certain(intervals),
        }


def exp_interval(means: Sequence[float]) -> Bounds | None:
    """Return the interval of perplexity: a mean of logarithms and its error, both taken through exp."""
    low, high = map(_exp, interval(fmean(means), mean_error(means)) or (math.inf, math.inf))
    return None if low is None or high is None else (low, high)


def _exp(value: float) -> float | None:
    """Return exp(value); None if it overflows."""
    return math.exp(value) if value < 700 else None


def window_perplexity(windows: Mapping[int, Tensor]) -> Score:
    def surprises(expected: Any, actual: Any, labels: Tensor) -> Tensor:
        pairs = zip(scores_of(actual).detach(), labels.tolist(), strict=True)
        return torch.stack([surprise(s, windows[n]).mean() for s, n in pairs])

    return Score(surprises, lambda mean: math.exp(min(mean, 700.0)))


def _same(expected: Any, actual: Any, labels: Any = None) -> Tensor:
    return 100 * (scores_of(expected).argmax(-1) == scores_of(actual).argmax(-1)).double().mean(1)


def _unlike(expected: Any, actual: Any) -> Tensor:
    pairs = zip(scores_of(expected), scores_of(actual), strict=True)
    return torch.stack([relative_entropy(a, b).mean() for a, b in pairs])


@task
@dataclass(frozen=True)
class Language(Task):
    """A network whose output's `logits` score the next token at every position: (inputs, positions, tokens)."""

    tokenizer: Tokenizer
    length: int  # tokens per window
    context: int | None = None  # the most tokens that it can read, or read and write; None if unknown

    name = "language"
    unit = "windows"
    enough = 32
    positional = False
    verb = "writes"
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
        "agreement": Objective(compared_by[0], lambda items: Score(_same)),
    }

    def drawn(self, output: Any, sources: Sequence[Generator]) -> Tensor:
        """Sample a next token at every position, from that position's softmax."""
        terms = []
        for scores, source in zip(scores_of(output), sources, strict=True):
            token = torch.multinomial(scores.detach().softmax(-1).cpu(), 1, generator=source)
            terms.append(scores.log_softmax(-1).gather(-1, token.to(scores.device)).sum())
        return torch.stack(terms).sum()

    def divergence(self, expected: Any, actual: Any) -> Tensor:
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

    def metric(self, items: Items) -> Perplexity:
        return Perplexity(items.contents)

    def row(self, inputs: Any, number: int, place: int) -> str | None:
        ids = inputs["input_ids"]
        if place >= ids.shape[1]:
            return None
        token = self.tokenizer.decode([int(ids[number, place])])
        return f"{token!r}, the first" if place == 0 else repr(token)

    def prompts(self, texts: Sequence[str], more: int) -> dict[str, Tensor]:
        """Return texts to continue by `more` tokens, as one batch: shorter ones are padded on the left."""
        rows = [self.tokenizer.encode(text) for text in texts]
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

    def example(self, item: Item, ann: Any, snn: Any, items: Items) -> dict[str, Any]:
        """Return the place of a window where the networks differ most, and what each would write next."""
        first, second = scores_of(ann)[0], scores_of(snn)[0]
        place = int(relative_entropy(first.float(), second.float()).argmax())
        start = max(0, place + 1 - BEFORE)
        before = self.tokenizer.decode(item.content[start : place + 1].tolist())
        best = likeliest(first[place], second[place], lambda token: self.tokenizer.decode([token]))
        same = int((first.argmax(-1) == second.argmax(-1)).sum())
        text = [f"{same} of {len(first)} next tokens are the same; furthest apart after token {place + 1}:"]
        for key, tokens in best.items():
            text.append(f"{key.upper()} " + ", ".join(f"“{token}” {100 * p:.1f} %" for token, p in tokens))
        label, agree = f"“{'…' if start else ''}{before}”", same == len(first)
        return {"label": label, "pictures": {}, "agree": agree, **best, "text": text}

    @staticmethod
    def summary(evaluation: Mapping[str, Any], published: float | None = None) -> Summary:
        ann, snn = (evaluation[key]["perplexity"] for key in NETWORKS)
        agreement = stated(evaluation, evaluation["agreement"], "agreement", 2, " %")
        kl = stated(evaluation, evaluation["kl"], "kl", 4, " nats per token")
        note = f"next token as the original {agreement}, KL {kl}"
        if (gap := evaluation.get("difference")) is not None:
            note += f", ×{snn / ann:.3f}, difference {stated(evaluation, gap, 'difference', 3, sign=True)}"
        rows = ((evaluation[key]["perplexity"], span(evaluation, f"{key}.perplexity", 3)) for key in NETWORKS)
        size = f"{evaluation['windows']} windows of {evaluation['tokens'] // evaluation['windows']} tokens"
        return Summary(
            title="Perplexity",
            table=Table(("perplexity per token", "95 %"), tuple(rows), digits=3),
            note=f"{note}; {size}",
            parts=("token", evaluation["tokens"]),
            examples="Each example is the place of its window where the two networks are furthest apart.",
        )
