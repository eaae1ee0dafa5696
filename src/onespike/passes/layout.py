"""Passes `nearest`, `thrifty`, `layout` and `bytes`: the integers a site may fire, and which of two it does."""

from dataclasses import replace
from functools import cache

import torch

from onespike.calibration.thresholds import SiteThreshold
from onespike.energy.columns import naf_weight, reading_of
from onespike.passes.base import PassContext, PassState, calibration_pass
from onespike.sites import Site
from onespike.spikes import mixed_levels
from onespike.spikes.fire_functions import recognize

UNIFORM, TAIL = 64, 11
DIGITS, LARGEST = (2, 3, 4), 2048
SIGNED, SKEWED, ONE_SIDED, TWO_BYTES = 63, 112, 127, 31 * 128 + 64
"""Levels that one byte holds, so that sums of two products stay within 16 bits, and two bytes."""
SKEW = 8
"""How much farther values of one sign reach than the others, behind GELU and its like."""
FINER, FARTHEST = 8, 2**20
"""How much finer the steps of a site may become in other passes, and the largest level of a tail."""


@calibration_pass("nearest", stage="levels")
def nearest(state: PassState, context: PassContext) -> PassState:
    """Fire level y_i from step·(y_{i−1} + y_i)/2 on instead of step·(y_i − ½): the nearest level, not the floor."""
    return state.with_sites({site: {"rounding": "nearest"} for site in state.spiking})


@calibration_pass("thrifty", stage="levels")
def thrifty(state: PassState, context: PassContext) -> PassState:
    """Fire the level of least (|x|/step − y)² + ½·digits(y) where digits are charged, and else the nearest.

    Where spikes are charged by their size, every level would fire too late, and large values shrink.
    """
    rounding = "thrifty" if reading_of(context.energy).by_digits else "nearest"
    return state.with_sites({site: {"rounding": rounding} for site in state.spiking})


@cache
def digit_levels(digits: int, largest: int) -> tuple[int, ...]:
    """Return all integers up to `largest` with at most `digits` nonzero signed binary digits.

    >>> digit_levels(2, 20)
    (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 17, 18, 20)
    """
    every = torch.arange(1, largest + 1)
    return tuple(every[naf_weight(every) <= digits].tolist())


def steps_of_largest(state: PassState, threshold: SiteThreshold) -> int:
    """Return the largest value seen in units of the largest steps of its site."""
    step = float(torch.maximum(threshold.positive.max(), threshold.negative.max()))
    return min(int(threshold.largest / (step * state.scale(threshold.site))) + 1, FARTHEST)


def reaching(levels: tuple[int, ...], largest: int) -> tuple[int, ...]:
    """Return the levels with a tail to the first level ≥ `largest`: the same tail longer, or integers of two digits.

    >>> reaching((1, 2, 3, 5, 9), 12)
    (1, 2, 3, 5, 9, 17)
    """
    if levels[-1] >= largest:
        return levels
    pattern = recognize(levels)
    if pattern is not None and pattern[1] > 1:
        return mixed_levels(pattern[0], (largest - pattern[0]).bit_length())
    every = digit_levels(2, 2 ** largest.bit_length())
    last = next(y for y in every if y >= largest)
    return (*levels, *(y for y in every if levels[-1] < y <= last))


@calibration_pass("layout", stage="levels")
def layout(state: PassState, context: PassContext) -> PassState:
    """Use levels up to 64 and a tail to 2111; where binary digits are charged, all integers of at most two digits.

    The tail is longer where it would not reach the largest value seen with an eighth of the present steps. Levels that a
    spike's payload does not hold are left out. Where digits are charged, `allocate` chooses per site how many a spike may have.
    """
    usual: tuple[tuple[int, ...], ...] = (mixed_levels(UNIFORM, TAIL),)
    if reading_of(context.energy).by_digits:
        usual = tuple(digit_levels(digits, LARGEST) for digits in DIGITS)
    layouts: dict[Site, tuple[tuple[int, ...], ...]] = {}
    for site, threshold in state.spiking.items():
        farthest = 1 if threshold.role == "softmax" else FINER * steps_of_largest(state, threshold)
        tails = (reaching(levels, min(farthest, FARTHEST)) for levels in usual)
        layouts[site] = tuple(dict.fromkeys(map(state.recipe.payload, tails)))
    changed = state.with_sites({site: {"levels": choices[0]} for site, choices in layouts.items()})
    return replace(changed, layouts=layouts)


@calibration_pass("bytes", stage="levels")
def bytes_(state: PassState, context: PassContext) -> PassState:
    """Use even levels that one byte holds: up to 63 for both signs, 127 for one; attention weights, which have few products, take two.

    Runtimes that quantize multiply such counts at once.
    """
    changes = {}
    for site, threshold in state.spiking.items():
        less, more = sorted(float(side.max()) for side in (threshold.positive, threshold.negative))
        most = SIGNED if more < SKEW * less else SKEWED if less > 0 else ONE_SIDED
        changes[site] = {"levels": mixed_levels(TWO_BYTES if threshold.role == "softmax" else most, 0)}
    return state.with_sites(changes)
