"""How well both networks predict the next token: perplexity in two conventions, KL and agreement, in one pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from onespike.errors import DataError
from onespike.runtime.batches import logits
from onespike.tasks.intervals import Bounds, certain, interval, mean_error, ratio_error
from onespike.tasks.scores import NETWORKS, Mean, refuse_nan, relative_entropy
from onespike.tasks.text import Window

POSITIONS = 256
"""Positions that are scored at a time: their probabilities take 256 times the vocabulary."""


def scores_of(output: Any) -> Tensor:
    """Return logits of shape (inputs, positions, tokens)."""
    scores: Tensor = logits(output)
    if isinstance(scores, Tensor) and scores.dim() == 3:
        return scores
    raise DataError(
        "the network's output has no scores of shape (inputs, positions, tokens). Give a language model."
    )


def predicted(scores: Tensor, window: Window) -> Tensor:
    """Return the log-probability of what follows each position of a window: by float32 for every network, then double."""
    targets = window.targets.to(scores.device)
    parts = zip(scores[: len(targets)].split(POSITIONS), targets.split(POSITIONS), strict=True)
    return torch.cat(
        [s.float().log_softmax(-1).gather(-1, t[:, None])[:, 0].double() for s, t in parts]
    ).cpu()


def surprise(logs: Tensor, window: Window) -> Tensor:
    """Return the mean −log p of every token of a window but the first."""
    return -logs[: len(window.ids) - 1].mean()


class Perplexity:
    """Perplexity of both networks, the KL of each next token (nats) and the agreement on the best one (percent).

    `perplexity` is exp of the mean over windows of −log p of every token but the first, as in the tables of GPTQ.
    `word_perplexity` is exp(−log p of all tokens / words), as lm-evaluation-harness counts if the text is one
    document in windows of this length. `bits_per_byte` is −log₂ p of all tokens / bytes.
    """

    def __init__(self, windows: Mapping[int, Window]) -> None:
        self.windows = windows
        self.rows: list[dict[str, Any]] = []

    def update(self, ann: Any, snn: Any, labels: Tensor | None) -> None:
        """Add both networks' scores for the windows with these numbers."""
        if labels is None:
            raise DataError("a window without its number cannot be scored. Give the numbers as labels.")
        rows = zip(labels.tolist(), scores_of(ann).detach(), scores_of(snn).detach(), strict=True)
        self.rows += [_row(self.windows[number], first, second) for number, first, second in rows]

    def merge(self, other: Perplexity) -> None:
        self.rows += other.rows

    def _column(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows]

    def compute(self) -> dict[str, Any]:
        """`{"ann": {"perplexity", "word_perplexity", "bits_per_byte"}, "snn": {…}, "agreement", "kl", …}`."""
        if not self.rows:
            raise DataError("no window was scored. Give a text.")
        means = {name: self._column(f"{name} mean") for name in NETWORKS}
        figures = {name: self._figures(name) for name in NETWORKS}
        ann, snn = (figures[name]["perplexity"] for name in NETWORKS)
        difference = error = None
        if ann is not None and snn is not None:
            pairs = zip(*means.values(), strict=True)
            # to first order, paired window by window
            difference, error = snn - ann, mean_error([snn * after - ann * before for before, after in pairs])
        unlike, same, positions = map(self._column, ("unlike", "same", "positions"))
        kl, agreement = (math.fsum(parts) / sum(positions) for parts in (unlike, same))
        intervals = {
            **{f"{name}.perplexity": exp_interval(means[name]) for name in NETWORKS},
            "difference": interval(difference, error),
            "kl": interval(kl, ratio_error(unlike, positions), least=0.0),
            "agreement": interval(agreement, ratio_error(same, positions)),
        }
        return {
            "task": "language",
            **figures,
            "agreement": agreement,
            "kl": kl,
            "windows": len(self.rows),
            "tokens": sum(positions),
            "difference": difference,
            "standard_error": error,
            "intervals": certain(intervals),
        }

    def _figures(self, name: str) -> dict[str, float | None]:
        every, words, sizes = math.fsum(self._column(f"{name} sum")), 0, 0
        if None not in self._column("words"):  # the text is known
            words, sizes = sum(self._column("words")), sum(self._column("bytes"))
        return {
            "perplexity": _exp(fmean(self._column(f"{name} mean"))),
            "word_perplexity": _exp(every / words) if words else None,
            "bits_per_byte": every / sizes / math.log(2) if sizes else None,
        }


def _row(window: Window, ann: Tensor, snn: Tensor) -> dict[str, Any]:
    """A window: −log p per token and of all tokens by each network, KL, equal answers, and what they are shares of."""
    row: dict[str, Any] = {"unlike": 0.0, "same": 0.0, "positions": len(window.ids)}
    row |= {"words": window.words, "bytes": window.bytes}
    for name, scores in (("ann", ann), ("snn", snn)):
        logs = predicted(scores, window)
        refuse_nan(logs, name, "this text")
        row[f"{name} mean"], row[f"{name} sum"] = float(surprise(logs, window)), -float(logs.sum())
    for first, second in zip(ann.split(POSITIONS), snn.split(POSITIONS), strict=True):
        row["unlike"] += float(relative_entropy(first.float(), second.float()).double().sum())
        row["same"] += 100.0 * int((first.argmax(-1) == second.argmax(-1)).sum())
    return row


def exp_interval(means: Sequence[float]) -> Bounds | None:
    """Return the interval of perplexity: a mean of logarithms and its error, both taken through exp."""
    low, high = map(_exp, interval(fmean(means), mean_error(means)) or (math.inf, math.inf))
    return None if low is None or high is None else (low, high)


def _exp(value: float) -> float | None:
    """Return exp(value); None if it overflows."""
    return math.exp(value) if value < 700 else None


def window_perplexity(windows: Mapping[int, Window]) -> Mean:
    """Return the perplexity per token of one network, for searches."""

    def surprises(expected: Any, actual: Any, labels: Tensor) -> Tensor:
        pairs = zip(scores_of(actual).detach(), labels.tolist(), strict=True)
        return torch.stack([surprise(predicted(s, windows[n]), windows[n]) for s, n in pairs])

    return Mean(surprises, lambda mean: math.exp(min(mean, 700.0)))
