"""Quantiles of a stream against numpy, whatever its order and split."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from onespike.calibration.observers import Histogram
from onespike.kernels import build as native

DISTRIBUTIONS = {
    "normal": lambda g: torch.randn(20_000, generator=g),
    "long tail": lambda g: torch.randn(20_000, generator=g) ** 5,
    "rectified": lambda g: torch.randn(20_000, generator=g).relu(),
    "shifted": lambda g: torch.randn(20_000, generator=g) * 1e-3 - 7,
    "tiny": lambda g: torch.randn(20_000, generator=g) * 1e-6,
    "few values": lambda g: torch.randint(-3, 4, (20_000,), generator=g).float(),
}


def reference(x: np.ndarray, percentile: float, side: int, domain: str) -> float:
    x = side * x
    x = x[x >= 2.0**-30] if domain == "sided" else x  # smaller magnitudes count as zero
    if not len(x):
        return 0.0
    return max(0.0, float(np.quantile(x, 1 - percentile / 100, method="inverted_cdf")))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("percentile", [0.0, 0.5, 1.0, 2.5, 20.0])
@pytest.mark.parametrize("side", [+1, -1])
@pytest.mark.parametrize("domain", ["all", "sided"])
def test_quantile_within_the_stated_bound(name, percentile, side, domain):
    x = DISTRIBUTIONS[name](torch.Generator().manual_seed(1))
    histogram = Histogram()
    histogram.update(x)
    expected = reference(x.numpy(), percentile, side, domain)
    found = float(histogram.quantile(percentile, side, domain)[0])
    assert abs(found - expected) <= (2.0**-10 if percentile else 0) * abs(expected)


def observed(*parts: torch.Tensor, axis: int | None = None) -> Histogram:
    histogram = Histogram(axis)
    for part in parts:
        histogram.update(part)
    return histogram


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_are_read_as_float32(dtype):
    x = torch.randn(500).to(dtype)
    assert torch.equal(observed(x).quantile(1, +1), observed(x.float()).quantile(1, +1))


def test_values_beyond_the_range_are_answered_exactly():
    assert float(observed(torch.tensor([1e30] * 99 + [1.0])).quantile(1, +1)[0]) == pytest.approx(1e30)
    assert float(observed(torch.full((100,), 1e-20)).quantile(1, +1)[0]) == 0


@pytest.mark.skipif(native.library() is None, reason="no kernels here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_kernel_counts_as_the_plain_form(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    special = torch.tensor(
        [0.0, -0.0, torch.nan, -torch.nan, torch.inf, -torch.inf, 1e-45, 2.0**-30, 2.0**21]
    )
    x = torch.cat([torch.randn(5000, generator=torch.Generator().manual_seed(0)).exp(), special]).to(dtype)
    x = torch.cat([x, -x]).reshape(2, -1).t()
    fast, plain = Histogram(), Histogram()
    fast.update(x)
    monkeypatch.setattr("onespike.calibration.observers.count_", lambda *args: False)
    plain.update(x)
    assert torch.equal(fast.counts, plain.counts) and int(fast.counts.sum()) == x.numel()
