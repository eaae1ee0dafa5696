"""The certainty of a figure: 95 % intervals, and their text form."""

from __future__ import annotations

import math

NORMAL = 1.96
"""Standard errors on either side."""


def share_interval(percent: float, inputs: int) -> tuple[float, float]:
    """The 95 % interval of a share of so many inputs, in percent (Wilson's, which holds near 0 and 100, too).

    >>> low, high = share_interval(100.0, 100)
    >>> round(low, 1), round(high, 1)
    (96.3, 100.0)
    """
    share, square = percent / 100, NORMAL**2
    center = share + square / (2 * inputs)
    reach = NORMAL * math.sqrt(share * (1 - share) / inputs + square / (4 * inputs**2))
    whole = 1 + square / inputs
    low, high = 100 * (center - reach) / whole, 100 * (center + reach) / whole
    return min(low, percent), max(high, percent)  # also where rounding says otherwise


def interval(value: float, error: float) -> tuple[float, float]:
    """Return the 95 % interval of a figure with this standard error."""
    return value - NORMAL * error, value + NORMAL * error


def spelled(bounds: tuple[float, float], digits: int = 1, sign: bool = False) -> str:
    """Return an interval as text.

    >>> spelled((-1.46, 0.51), sign=True)
    '95 %: −1.5 to +0.5'
    """
    low, high = (f"{bound:{'+' if sign else ''}.{digits}f}".replace("-", "−") for bound in bounds)
    return f"95 %: {low} to {high}"
