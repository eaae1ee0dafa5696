"""How well both networks predict the next token: perplexity in two conventions, KL and agreement, in one pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from onespike.errors import DataError
from onespike.runtime.batches import logits
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


class Perplexity:
    """Perplexity of both networks, the KL of each next token (nats) and the agreement on the best one (percent).

    `perplexity` is exp of the mean over windows of −log p of every token but the first, as in the tables of GPTQ.
    `word_perplexity` is exp(−log p of all tokens / words), as lm-evaluation-harness counts if the text is one
    document in windows of this length. `bits_per_byte` is −log₂ p of all tokens / bytes.
    """

    def __init__(self, windows: Mapping[int, Window]) -> None:
        self.windows = windows
        self.count = self.positions = self.agreeing = 0
        self.words: int | None = 0
        self.bytes: int | None = 0
        self.divergence = 0.0
        self.all = {"ann": 0.0, "snn": 0.0}
        self.sums, self.squares = {"ann": 0.0, "snn": 0.0}, {"ann": 0.0, "snn": 0.0, "both": 0.0}

    def update(self, ann: Any, snn: Any, labels: Tensor | None) -> None:
        """Add both networks' scores for the windows with these numbers."""
        if labels is None:
            raise DataError("a window without its number cannot be scored. Give the numbers as labels.")
        both = {"ann": scores_of(ann).detach(), "snn": scores_of(snn).detach()}
        for row, number in enumerate(labels.tolist()):
            self._update({name: scores[row] for name, scores in both.items()}, self.windows[number])

    def _update(self, scores: dict[str, Tensor], window: Window) -> None:
        mean = {}
        for name, found in scores.items():
            logs = predicted(found, window)
            if bool(logs.isnan().any()):
                raise DataError(
                    f"the output of the {NETWORKS[name]} network is NaN. Check its weights, and this text."
                )
            mean[name] = -float(logs[: len(window.ids) - 1].mean())
            self.all[name] -= float(logs.sum())
            self.sums[name] += mean[name]
            self.squares[name] += mean[name] ** 2
        self.squares["both"] += mean["ann"] * mean["snn"]
        for ann, snn in zip(*(scores[name].split(POSITIONS) for name in ("ann", "snn")), strict=True):
            self.divergence += float(divergence(ann.float(), snn.float()).double().sum())
            self.agreeing += int((ann.argmax(-1) == snn.argmax(-1)).sum())
        self.count += 1
        self.positions += len(window.ids)
        self.words = None if self.words is None or window.words is None else self.words + window.words
        self.bytes = None if self.bytes is None or window.bytes is None else self.bytes + window.bytes

    def merge(self, other: Perplexity) -> None:
        """Take in what another one has seen."""
        for name in ("count", "positions", "agreeing", "divergence"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("words", "bytes"):
            mine, more = getattr(self, name), getattr(other, name)
            setattr(self, name, None if mine is None or more is None else mine + more)
        for table in ("all", "sums", "squares"):
            mine, more = getattr(self, table), getattr(other, table)
            setattr(self, table, {name: mine[name] + more[name] for name in mine})

    def compute(self) -> dict[str, Any]:
        """`{"ann": {"perplexity", "word_perplexity", "bits_per_byte"}, "snn": {…}, "agreement", "kl", …}`."""
        if not self.count:
            raise DataError("no window was scored. Give a text.")
        found = {name: self._figures(name) for name in NETWORKS}
        ann, snn = (found[name]["perplexity"] for name in ("ann", "snn"))
        return {
            "task": "language",
            **found,
            "agreement": 100 * self.agreeing / self.positions,
            "kl": self.divergence / self.positions,
            "windows": self.count,
            "tokens": self.positions,
            "difference": None if ann is None or snn is None else snn - ann,
            "standard_error": self._error(ann, snn),
        }

    def _figures(self, name: str) -> dict[str, float | None]:
        words = None if not self.words else _exp(self.all[name] / self.words)
        bits = None if not self.bytes else self.all[name] / self.bytes / math.log(2)
        figures = {"word_perplexity": words, "bits_per_byte": bits}
        return {"perplexity": _exp(self.sums[name] / self.count), **figures}

    def _error(self, ann: float | None, snn: float | None) -> float | None:
        """The standard error of the difference, paired window by window, to first order."""
        if self.count < 2 or ann is None or snn is None:
            return None
        n = self.count
        a, s = self.sums["ann"] / n, self.sums["snn"] / n
        moments = {
            "ann": self.squares["ann"] / n - a * a,
            "snn": self.squares["snn"] / n - s * s,
            "both": self.squares["both"] / n - a * s,
        }
        variance = snn**2 * moments["snn"] + ann**2 * moments["ann"] - 2 * ann * snn * moments["both"]
        return math.sqrt(max(variance, 0.0) / (n - 1))


def _exp(value: float) -> float | None:
    """Return exp(value); None if it overflows."""
    return math.exp(value) if value < 700 else None


class WindowPerplexity:
    """The perplexity per token of one network, for searches."""

    def __init__(self, windows: Mapping[int, Window]) -> None:
        self.windows, self.total, self.count = windows, 0.0, 0

    def update(self, expected: Any, actual: Any, labels: Any, size: int) -> None:
        for scores, number in zip(scores_of(actual).detach(), labels.tolist(), strict=True):
            window = self.windows[number]
            self.total -= float(predicted(scores, window)[: len(window.ids) - 1].mean())
            self.count += 1

    def value(self) -> float:
        return math.exp(min(self.total / self.count, 700.0))
