"""Checks of levels: positive integers that increase and that float32 holds exactly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from onespike.errors import UsageError

LARGEST = 2**24
"""float32 represents every integer up to here; beyond, spike counts would be rounded."""


def check_levels(levels: Sequence[int]) -> tuple[int, ...]:
    """Return the levels as a tuple, or raise the reason why a neuron cannot fire them.

    >>> check_levels([1, 2, 4])
    (1, 2, 4)
    """
    shown = ",".join(str(y) for y in levels[:8]) + ("…" if len(levels) > 8 else "")
    if not levels or any(not isinstance(y, int) or y < 1 for y in levels):
        raise UsageError(
            f"levels must be positive integers, not '{shown}'. Write for example 1,2,4 or mixed:8."
        )
    if any(b <= a for a, b in pairwise(levels)):
        raise UsageError(f"levels must increase, and '{shown}' do not. Write each once, the smallest first.")
    check_largest(levels[-1], shown)
    return tuple(levels)


def check_largest(largest: int, shown: str) -> None:
    if largest > LARGEST:
        raise UsageError(
            f"levels '{shown}' reach {largest}, and above 2**24 counts are not exact in float32. "
            "Use fewer levels, or a shorter tail such as mixed:64+8."
        )
