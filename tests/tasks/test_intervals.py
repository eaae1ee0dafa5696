"""Do 95 % intervals hold the truth in 95 % of all draws? Each kind against what numpy or a simulation says."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

from onespike.tasks.intervals import (
    bounds_of,
    correlation_interval,
    interval,
    paired_interval,
    ratio_error,
    span,
    stated,
)
from onespike.tasks.language import Perplexity, window_perplexity

DRAWS = 400
HELD = range(int(0.92 * DRAWS), int(0.98 * DRAWS) + 1)
"""95 %, give or take what chance allows in so many draws."""


def test_a_ratio_of_sums():
    random = numpy.random.default_rng(0)
    wholes = random.integers(5, 20, (DRAWS, 60)).astype(float)
    parts = random.gamma(2.0, 0.5, wholes.shape) * wholes  # the ratio is 1
    found = [
        interval(sum(p) / sum(w), ratio_error(p, w))
        for p, w in zip(parts.tolist(), wholes.tolist(), strict=True)
    ]
    assert sum(low <= 1.0 <= high for low, high in found) in HELD
    assert ratio_error([1.0], [2.0]) is None


@pytest.mark.parametrize(("gain", "loss"), [(0.02, 0.05), (0.005, 0.01), (0.3, 0.2)])
def test_a_difference_on_the_same_inputs(gain, loss):
    random = numpy.random.default_rng(0)
    drawn = random.multinomial(200, [gain, loss, 1 - gain - loss], DRAWS)
    found = [paired_interval(gained, lost, 200) for gained, lost, _ in drawn.tolist()]
    held = sum(low <= 100 * (gain - loss) <= high for low, high in found)
    assert held >= HELD[0], "few inputs that differ make it wider, never too narrow"
    assert paired_interval(10, 0, 10) == (pytest.approx(52.0, abs=0.1), 100.0)


def test_a_correlation_of_ranks():
    random, held = numpy.random.default_rng(0), 0
    truth = 6 / math.pi * math.asin(0.35)  # Spearman at Pearson 0.7
    for _ in range(DRAWS):
        x, noise = random.normal(size=(2, 50))
        y = 0.7 * x + math.sqrt(1 - 0.49) * noise
        ranks = [numpy.argsort(numpy.argsort(v)) for v in (x, y)]
        low, high = correlation_interval(float(numpy.corrcoef(*ranks)[0, 1]), 50)
        held += low <= truth <= high
    assert held in HELD
    assert correlation_interval(0.5, 3) is None and correlation_interval(1.0, 9) is None


def test_perplexity_and_its_difference():
    """Windows whose next tokens both networks know with probabilities that vary from window to window."""
    generator, held, paired = torch.Generator().manual_seed(0), 0, 0
    logits = 2 + numpy.random.default_rng(1).normal(size=100_000)
    truth = numpy.exp(numpy.log1p(3 * numpy.exp(-logits)).mean())
    every = torch.randint(4, (30, 6), generator=generator)
    windows = dict(enumerate(every))
    targets = every.roll(-1, 1)[..., None]
    for _ in range(DRAWS // 4):
        metric, alone, numbers = Perplexity(windows), window_perplexity(windows), torch.arange(30)
        sure = 2 + torch.randn(30, 1, generator=generator)  # logit of the right token; the others have 0
        less = sure - 0.5 + 0.1 * torch.randn(30, 1, generator=generator)
        ann, snn = (
            torch.zeros(30, 6, 4).scatter_(2, targets, x[..., None].expand(-1, 6, 1)) for x in (sure, less)
        )
        metric.update(ann, snn, numbers)
        alone.update(None, snn, numbers, 30)
        record = metric.compute()
        assert alone.value() == pytest.approx(record["snn"]["perplexity"])
        low, high = bounds_of(record, "ann.perplexity")
        held += low <= truth <= high
        low, high = bounds_of(record, "difference")
        paired += low > 0  # the spiking one is worse by far less than windows differ, and that is seen
    assert held in range(88, 100) and paired == DRAWS // 4


def test_words():
    record = {"kl": 0.5, "intervals": {"kl": [0.4, 0.6]}}
    assert stated(record, 0.5, "kl", 2, " nats") == "0.50 nats (95 %: 0.4 to 0.6)"
    assert span(record, "kl", 2) == "0.40 to 0.60" and span(record, "top1") is None
    assert stated({}, -0.5, "top1", 1, sign=True) == "−0.5"
