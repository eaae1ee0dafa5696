"""Levels of least squared error for a measured distribution, by dynamic programming."""

from __future__ import annotations

import torch
from torch import Tensor

from onespike.errors import CalibrationError, UsageError
from onespike.spikes.level_checks import LARGEST

# The dynamic program of `density_levels` is quadratic in the candidates: 1024 take a tenth of a second.
CANDIDATES = 1024


def density_levels(values: Tensor, counts: Tensor, count: int, rounding: str = "paper") -> tuple[int, ...]:
    """Return the integer levels of least expected squared error: dense where the activations are (§3.2.3).

    The first level is 1 and the last is the largest value seen, rounded. Those between minimize
    Σ counts·(values − G(values))² exactly, by dynamic programming over the integers. Above about a
    thousand the candidates thin out geometrically, so that an outlier costs neither time nor memory.

    Args:
        values: bin centers of a histogram of |x|/step, 1-D.
        counts: number of activations per bin.
        count: number of levels to choose; fewer are returned if the range holds fewer integers.
        rounding: the neuron's rounding, `paper` or `nearest`.

    >>> density_levels(torch.tensor([0.0, 1.0, 2.0, 3.0, 40.0]), torch.tensor([9, 9, 9, 9, 1]), 4)
    (1, 2, 3, 40)
    """
    if values.ndim != 1 or values.shape != counts.shape:
        raise UsageError(
            f"density levels: values {tuple(values.shape)} and counts {tuple(counts.shape)} must be 1-D "
            "and alike. Pass the bin centers and their counts."
        )
    if count < 2:
        raise UsageError(
            f"density levels: at least 2 levels are needed, not {count}. Ask for density:1 or more."
        )
    value, order = values.detach().double().cpu().sort()
    weight = counts.detach().double().cpu()[order]
    seen = value[weight > 0]
    if not len(seen) or not bool(seen.isfinite().all()):
        raise CalibrationError(
            "density levels: the histogram is empty or not finite. Calibrate on finite activations."
        )
    top = min(max(round(float(seen[-1])), 1), LARGEST)
    candidate = _candidates(top)
    if len(candidate) <= count:
        return tuple(int(y) for y in candidate)
    cost = _segment_cost(value, weight, candidate, rounding)
    # best[j]: the least cost of the levels chosen so far, with candidate j last.
    best = torch.full((len(candidate),), torch.inf, dtype=torch.float64)
    best[0] = 0.0
    before = []
    for _ in range(count - 1):
        best, origin = (best[:, None] + cost).min(dim=0)
        before.append(origin)
    chosen = [len(candidate) - 1]
    for origin in reversed(before):
        chosen.append(int(origin[chosen[-1]]))
    return tuple(int(candidate[j]) for j in reversed(chosen))


def _candidates(top: int) -> Tensor:
    """Return integers from 1 to `top`: all if they are few, else all small ones and a geometric tail."""
    if top <= CANDIDATES:
        return torch.arange(1, top + 1)
    spaced = torch.logspace(0, 1, CANDIDATES, base=top, dtype=torch.float64).round().long()
    spaced[-1] = top
    kept: Tensor = torch.unique(torch.cat([torch.arange(1, CANDIDATES // 8), spaced]))
    return kept


def _segment_cost(value: Tensor, weight: Tensor, candidate: Tensor, rounding: str) -> Tensor:
    """Return cost[i, j]: the squared error of the values from level i up to level j with no level between."""
    moments = [torch.cat([torch.zeros(1).double(), (weight * value**power).cumsum(0)]) for power in range(3)]
    level = candidate.double()
    low, high = level[:, None], level[None, :]
    turn = (
        (high - 0.5 if rounding == "paper" else (low + high) / 2).expand(len(level), len(level)).contiguous()
    )
    place = torch.searchsorted(value, level)
    middle = torch.searchsorted(value, turn)

    def error(first: Tensor, last: Tensor, target: Tensor) -> Tensor:
        total, mean, square = (moment[last] - moment[first] for moment in moments)
        return (square - 2 * target * mean + target**2 * total).clamp_min(0)

    cost = error(place[:, None], middle, low) + error(middle, place[None, :], high)
    return cost.masked_fill(low >= high, torch.inf)
