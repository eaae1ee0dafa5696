"""How well both networks predict the next token: perplexity in two conventions, KL and agreement, in one pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onespike.errors import DataError
from onespike.runtime.batches import logits
from onespike.tasks.intervals import Bounds, interval, known, ratio_error
from onespike.tasks.windows import Window

POSITIONS = 256
"""Positions that are scored at a time: their probabilities take 256 times the vocabulary."""
NETWORKS = {"ann": "original", "snn": "spiking"}


def scores_of(output: Any) -> Tensor:
    """Return logits of shape (inputs, positions, tokens)."""
    found: Tensor = logits(output)
    if not isinstance(found, Tensor) or found.dim() != 3:
        raise DataError(
            "the network's output has no scores of shape (inputs, positions, tokens). Give a language model."
        )
    return found


def log_probabilities(scores: Tensor) -> Tensor:
    """Return log-probabilities in float32, regardless of the network's type."""
    return scores.float().log_softmax(-1)


def predicted(scores: Tensor, window: Window) -> Tensor:
    """Return the log-probability of what follows each position of a window, in double precision."""
    targets = window.targets.to(scores.device)
    parts = zip(scores[: len(targets)].split(POSITIONS), targets.split(POSITIONS), strict=True)
    found = [log_probabilities(s).gather(-1, t[:, None])[:, 0].double() for s, t in parts]
    return torch.cat(found).cpu()


def divergence(expected: Tensor, actual: Tensor) -> Tensor:
    """Return KL(expected ‖ actual) per position, (…, positions); tokens of probability 0 add nothing."""
    log_p, log_q = expected.log_softmax(-1), actual.log_softmax(-1)
    terms = log_p.exp() * (log_p - log_q)
    return terms.masked_fill(log_p == -torch.inf, 0.0).sum(-1)


class _Row(NamedTuple):
    """A window: −log p per token and of all tokens by each network, KL, equal answers, and positions."""

    mean: dict[str, float]
    every: dict[str, float]
    unlike: float
    agreeing: int
    positions: int


class Perplexity:
    """Perplexity of both networks, the KL of each next token (nats) and the agreement on the best one (percent).

    `perplexity` is exp of the mean over windows of −log p of every token but the first, as in the tables of GPTQ.
    `word_perplexity` is exp(−log p of all tokens / words), as lm-evaluation-harness counts if the text is one
    document in windows of this length. `bits_per_byte` is −log₂ p of all tokens / bytes.
    """

    def __init__(self, windows: Mapping[int, Window]) -> None:
        self.windows = windows
        self.words: int | None = 0
        self.bytes: int | None = 0
        self.rows: list[_Row] = []

    def update(self, ann: Any, snn: Any, labels: Tensor | None) -> None:
        """Add both networks' scores for the windows with these numbers."""
        if labels is None:
            raise DataError("a window without its number cannot be scored. Give the numbers as labels.")
        both = {"ann": scores_of(ann).detach(), "snn": scores_of(snn).detach()}
        for row, number in enumerate(labels.tolist()):
            self._update({name: scores[row] for name, scores in both.items()}, self.windows[number])

    def _update(self, scores: dict[str, Tensor], window: Window) -> None:
        mean, every, unlike, agreeing = {}, {}, 0.0, 0
        for name, found in scores.items():
            logs = predicted(found, window)
            if bool(logs.isnan().any()):
                raise DataError(
                    f"the output of the {NETWORKS[name]} network is NaN. Check its weights, and this text."
                )
            mean[name] = -float(logs[: len(window.ids) - 1].mean())
            every[name] = -float(logs.sum())
        for ann, snn in zip(*(scores[name].split(POSITIONS) for name in ("ann", "snn")), strict=True):
            unlike += float(divergence(ann.float(), snn.float()).double().sum())
            agreeing += int((ann.argmax(-1) == snn.argmax(-1)).sum())
        self.rows.append(_Row(mean, every, unlike, agreeing, len(window.ids)))
        self.words = None if self.words is None or window.words is None else self.words + window.words
        self.bytes = None if self.bytes is None or window.bytes is None else self.bytes + window.bytes

    def merge(self, other: Perplexity) -> None:
        """Take in what another one has seen."""
        self.rows += other.rows
        for name in ("words", "bytes"):
            mine, more = getattr(self, name), getattr(other, name)
            setattr(self, name, None if mine is None or more is None else mine + more)

    def compute(self) -> dict[str, Any]:
        """`{"ann": {"perplexity", "word_perplexity", "bits_per_byte"}, "snn": {…}, "agreement", "kl", …}`."""
        if not self.rows:
            raise DataError("no window was scored. Give a text.")
        found = {name: self._figures(name) for name in NETWORKS}
        ann, snn = (found[name]["perplexity"] for name in ("ann", "snn"))
        error = self._error(ann, snn)
        positions = [row.positions for row in self.rows]
        unlike, same = [row.unlike for row in self.rows], [100.0 * row.agreeing for row in self.rows]
        kl, agreement = (math.fsum(parts) / sum(positions) for parts in (unlike, same))
        of_kl, of_agreement = (ratio_error(parts, positions) for parts in (unlike, same))
        return {
            "task": "language",
            **found,
            "agreement": agreement,
            "kl": kl,
            "windows": len(self.rows),
            "tokens": sum(positions),
            "difference": None if ann is None or snn is None else snn - ann,
            "standard_error": error,
            "intervals": known(
                {
                    **{f"{name}.perplexity": self._interval(name) for name in NETWORKS},
                    "difference": None if error is None else interval(snn - ann, error),  # type: ignore[operator]
                    "kl": None if of_kl is None else interval(kl, of_kl, least=0.0),
                    "agreement": None if of_agreement is None else interval(agreement, of_agreement),
                }
            ),
        }

    def _figures(self, name: str) -> dict[str, float | None]:
        every = math.fsum(row.every[name] for row in self.rows)
        words = None if not self.words else _exp(every / self.words)
        bits = None if not self.bytes else every / self.bytes / math.log(2)
        return {"perplexity": _exp(self._mean(name)), "word_perplexity": words, "bits_per_byte": bits}

    def _mean(self, name: str) -> float:
        return math.fsum(row.mean[name] for row in self.rows) / len(self.rows)

    def _variance(self, one: str, other: str) -> float:
        """Of the mean over windows; the covariance of two networks' means, whose windows are the same."""
        means = self._mean(one), self._mean(other)
        moments = ((row.mean[one] - means[0]) * (row.mean[other] - means[1]) for row in self.rows)
        return math.fsum(moments) / len(self.rows) / (len(self.rows) - 1)

    def _interval(self, name: str) -> Bounds | None:
        """Of perplexity: a mean of logarithms and its error, both taken through exp."""
        if len(self.rows) < 2:
            return None
        low, high = map(_exp, interval(self._mean(name), math.sqrt(self._variance(name, name))))
        return None if low is None or high is None else (low, high)

    def _error(self, ann: float | None, snn: float | None) -> float | None:
        """The standard error of the difference, paired window by window, to first order."""
        if len(self.rows) < 2 or ann is None or snn is None:
            return None
        own = snn**2 * self._variance("snn", "snn") + ann**2 * self._variance("ann", "ann")
        return math.sqrt(max(own - 2 * ann * snn * self._variance("ann", "snn"), 0.0))


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
        return math.exp(min(math.fsum(self.means) / len(self.means), 700.0))

    def interval(self) -> Bounds | None:
        error = ratio_error(self.means, [1.0] * len(self.means))
        if error is None:
            return None
        low, high = (min(bound, 700.0) for bound in interval(math.fsum(self.means) / len(self.means), error))
        return math.exp(low), math.exp(high)
