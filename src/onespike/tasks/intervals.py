"""The certainty of a figure: 95 % intervals, and their text form."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

NORMAL = 1.96  # standard errors on either side
Bounds = tuple[float, float]  # where a figure lies with 95 % confidence


def share_interval(percent: float, inputs: int) -> Bounds:
    """The 95 % interval of a share of so many inputs, in percent (Wilson's, which holds near 0 and 100, too).

    >>> low, high = share_interval(100.0, 100)
    >>> round(low, 1), round(high, 1)
    (96.3, 100.0)
    """
    share, square = percent / 100, NORMAL**2
    center, whole = share + square / (2 * inputs), 1 + square / inputs
    reach = NORMAL * math.sqrt(share * (1 - share) / inputs + square / (4 * inputs**2))
    low, high = 100 * (center - reach) / whole, 100 * (center + reach) / whole
    return min(low, percent), max(high, percent)  # also where rounding says otherwise


def paired_interval(gained: int, lost: int, inputs: int) -> Bounds:
    """The 95 % interval of a difference of two shares of the same inputs, in percent (Bonett and Price)."""
    whole = inputs + 2  # one more gained and one more lost, for networks that differ on few inputs, or none
    center, spread = (gained - lost) / whole, (gained + lost + 2) / whole
    reach = NORMAL * math.sqrt((spread - center**2) / whole)
    return 100 * max(center - reach, -1.0), 100 * min(center + reach, 1.0)


def interval(value: float | None, error: float | None, least: float = -math.inf) -> Bounds | None:
    """Return the 95 % interval of a figure with this standard error that cannot be below `least`; None without one."""
    if value is None or error is None:
        return None
    return max(value - NORMAL * error, least), value + NORMAL * error


def correlation_interval(value: float | None, pairs: int) -> Bounds | None:
    """Return the 95 % interval of a rank correlation of so many pairs, by Fisher's transformation; None for three or fewer."""
    if value is None or pairs < 4 or abs(value) >= 1:
        return None
    reach = NORMAL * 1.03 / math.sqrt(pairs - 3)  # ranks vary by 6 % more than values
    return math.tanh(math.atanh(value) - reach), math.tanh(math.atanh(value) + reach)


def mean_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean of independent values; None for one."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def ratio_error(parts: Sequence[float], wholes: Sequence[float]) -> float | None:
    """Return the standard error of Σ parts / Σ wholes over independent inputs; None for one input."""
    count, ratio = len(parts), math.fsum(parts) / math.fsum(wholes)
    if count < 2:
        return None
    rest = math.fsum((part - ratio * whole) ** 2 for part, whole in zip(parts, wholes, strict=True))
    return math.sqrt(rest * count / (count - 1)) / math.fsum(wholes)


def certain(intervals: Mapping[str, Bounds | None]) -> dict[str, Bounds]:
    """Return the intervals of figures, such as `snn.top1`, without those that have none."""
    return {name: bounds for name, bounds in intervals.items() if bounds is not None}


def bounds_of(evaluation: Mapping[str, Any], figure: str) -> Bounds | None:
    """Return the interval of a figure of a stored evaluation, such as `snn.top1`, where it has one."""
    bounds = evaluation.get("intervals", {}).get(figure)
    return None if bounds is None else (bounds[0], bounds[1])


def spelled(bounds: Bounds, digits: int = 1, sign: bool = False) -> str:
    """Write an interval in words.

    >>> spelled((-1.46, 0.51), sign=True)
    '95 %: −1.5 to +0.5'
    """
    low, high = (f"{bound:{'+' if sign else ''}.{digits}f}".replace("-", "−") for bound in bounds)
    return f"95 %: {low} to {high}"


def span(evaluation: Mapping[str, Any], figure: str, digits: int = 1) -> str | None:
    bounds = bounds_of(evaluation, figure)
    return None if bounds is None else spelled(bounds, digits).removeprefix("95 %: ")


def stated(
    evaluation: Mapping[str, Any], value: float, figure: str, digits: int, unit: str = "", sign: bool = False
) -> str:
    """Write a value of a figure with its unit, and in parentheses with its interval if it has one."""
    text, bounds = f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−"), bounds_of(evaluation, figure)
    certainty = "" if bounds is None else f" ({spelled(bounds, digits if digits > 2 else 1, sign)})"
    return f"{text}{unit}{certainty}"
