"""How well both networks predict the next token: perplexity in two conventions, KL and agreement, in one pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onespike.errors import DataError
from onespike.runtime.batches import logits
from onespike.tasks.base import NETWORKS, relative_entropy
from onespike.tasks.intervals import Bounds, certain, interval, interval_or_none, ratio_error
from onespike.tasks.text import Window

POSITIONS = 256
"""Positions that are scored at a time: their probabilities take 256 times the vocabulary."""


def scores_of(output: Any) -> Tensor:
    """Return logits of shape (inputs, positions, tokens)."""
    scores: Tensor = logits(output)
    if not isinstance(scores, Tensor) or scores.dim() != 3:
        raise DataError(
            "the network's output has no scores of shape (inputs, positions, tokens). Give a language model."
        )
    return scores


def predicted(scores: Tensor, window: Window) -> Tensor:
    """Return the log-probability of what follows each position of a window: by float32 for every network, then double."""
    targets = window.targets.to(scores.device)
    parts = zip(scores[: len(targets)].split(POSITIONS), targets.split(POSITIONS), strict=True)
    return torch.cat(
        [s.float().log_softmax(-1).gather(-1, t[:, None])[:, 0].double() for s, t in parts]
    ).cpu()


class _Row(NamedTuple):
    """A window: −log p per token and of all tokens by each network, KL, equal answers, and what they are shares of."""

    mean: dict[str, float]
    every: dict[str, float]
    unlike: float
    agreeing: int
    positions: int
    words: int | None
    bytes: int | None


class Perplexity:
    """Perplexity of both networks, the KL of each next token (nats) and the agreement on the best one (percent).

    `perplexity` is exp of the mean over windows of −log p of every token but the first, as in the tables of GPTQ.
    `word_perplexity` is exp(−log p of all tokens / words), as lm-evaluation-harness counts if the text is one
    document in windows of this length. `bits_per_byte` is −log₂ p of all tokens / bytes.
    """

    def __init__(self, windows: Mapping[int, Window]) -> None:
        self.windows = windows
        self.rows: list[_Row] = []

    def update(self, ann: Any, snn: Any, labels: Tensor | None) -> None:
        """Add both networks' scores for the windows with these numbers."""
        if labels is None:
            raise DataError("a window without its number cannot be scored. Give the numbers as labels.")
        both = {"ann": scores_of(ann).detach(), "snn": scores_of(snn).detach()}
        for row, number in enumerate(labels.tolist()):
            scores = {name: output[row] for name, output in both.items()}
            self.rows.append(_row(scores, self.windows[number]))

    def merge(self, other: Perplexity) -> None:
        self.rows += other.rows

    def compute(self) -> dict[str, Any]:
        """`{"ann": {"perplexity", "word_perplexity", "bits_per_byte"}, "snn": {…}, "agreement", "kl", …}`."""
        if not self.rows:
            raise DataError("no window was scored. Give a text.")
        means = {name: [row.mean[name] for row in self.rows] for name in NETWORKS}
        figures = {name: self._figures(name, means[name]) for name in NETWORKS}
        ann, snn = (figures[name]["perplexity"] for name in NETWORKS)
        difference = None if ann is None or snn is None else snn - ann
        error = None if ann is None or snn is None else _paired_error(ann, snn, means)
        positions = [row.positions for row in self.rows]
        unlike, same = [row.unlike for row in self.rows], [100.0 * row.agreeing for row in self.rows]
        kl, agreement = (math.fsum(parts) / sum(positions) for parts in (unlike, same))
        return {
            "task": "language",
            **figures,
            "agreement": agreement,
            "kl": kl,
            "windows": len(self.rows),
            "tokens": sum(positions),
            "difference": difference,
            "standard_error": error,
            "intervals": certain(
                {
                    **{f"{name}.perplexity": exp_interval(means[name]) for name in NETWORKS},
                    "difference": interval_or_none(difference, error),
                    "kl": interval_or_none(kl, ratio_error(unlike, positions), least=0.0),
                    "agreement": interval_or_none(agreement, ratio_error(same, positions)),
                }
            ),
        }

    def _figures(self, name: str, means: Sequence[float]) -> dict[str, float | None]:
        every = math.fsum(row.every[name] for row in self.rows)
        counted = all(row.words is not None for row in self.rows)  # words and bytes of a text
        words, sizes = (
            sum(part or 0 for part in parts) for parts in zip(*(r[-2:] for r in self.rows), strict=True)
        )
        return {
            "perplexity": _exp(_mean(means)),
            "word_perplexity": _exp(every / words) if counted and words else None,
            "bits_per_byte": every / sizes / math.log(2) if counted and sizes else None,
        }


def _row(scores: Mapping[str, Tensor], window: Window) -> _Row:
    mean, every, unlike, agreeing = {}, {}, 0.0, 0
    for name, output in scores.items():
        logs = predicted(output, window)
        if bool(logs.isnan().any()):
            raise DataError(
                f"the output of the {NETWORKS[name]} network is NaN. Check its weights, and this text."
            )
        mean[name] = -float(logs[: len(window.ids) - 1].mean())
        every[name] = -float(logs.sum())
    for ann, snn in zip(*(scores[name].split(POSITIONS) for name in NETWORKS), strict=True):
        unlike += float(relative_entropy(ann.float(), snn.float()).double().sum())
        agreeing += int((ann.argmax(-1) == snn.argmax(-1)).sum())
    return _Row(mean, every, unlike, agreeing, len(window.ids), window.words, window.bytes)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _covariance(first: Sequence[float], second: Sequence[float]) -> float:
    """Of the means over windows, which are the same for both."""
    means = _mean(first), _mean(second)
    moments = ((a - means[0]) * (b - means[1]) for a, b in zip(first, second, strict=True))
    return math.fsum(moments) / len(first) / (len(first) - 1)


def _paired_error(ann: float, snn: float, means: Mapping[str, Sequence[float]]) -> float | None:
    """The standard error of the difference in perplexity, paired window by window, to first order."""
    first, second = means["ann"], means["snn"]
    if len(first) < 2:
        return None
    separate = snn**2 * _covariance(second, second) + ann**2 * _covariance(first, first)
    return math.sqrt(max(separate - 2 * ann * snn * _covariance(first, second), 0.0))


def exp_interval(means: Sequence[float]) -> Bounds | None:
    """Return the interval of perplexity: a mean of logarithms and its error, both taken through exp."""
    if len(means) < 2:
        return None
    low, high = map(_exp, interval(_mean(means), math.sqrt(_covariance(means, means))))
    return None if low is None or high is None else (low, high)


def _exp(value: float) -> float | None:
    """Return exp(value); None if it overflows."""
    return math.exp(value) if value < 700 else None


class WindowPerplexity:
    """The perplexity per token of one network, for searches."""

    def __init__(self, windows: Mapping[int, Window]) -> None:
        self.windows = windows
        self.means: list[float] = []

    def update(self, expected: Any, actual: Any, labels: Any, size: int) -> None:
        for scores, number in zip(scores_of(actual).detach(), labels.tolist(), strict=True):
            window = self.windows[number]
            self.means.append(-float(predicted(scores, window)[: len(window.ids) - 1].mean()))

    def value(self) -> float:
        return math.exp(min(_mean(self.means), 700.0))
