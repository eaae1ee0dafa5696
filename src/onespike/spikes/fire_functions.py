"""The fire function G: from the activation coordinate a = |x|/step + ½ to an integer spike count.

The coordinate, computed in float32, *defines* the neuron: it fires the largest level whose bound is not
above a. The forms below give the same counts bit for bit: closed ones for the levels of the paper, and one lookup for
any others, since every bound is a multiple of ⅛ and G(a) depends on ⌊8a⌋ alone.
"""

# ruff: noqa: N803, N806 (M is the paper's name)
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from onespike.errors import unknown
from onespike.spikes.levels import mixed_levels

ROUNDINGS = ("paper", "nearest", "thrifty")
TABLE = 2**16  # the longest table of a lookup

EXPONENT = 0x7F800000
"""The exponent bits of a float32: alone, they are the largest power of two not above the number."""

HALF = 0x00400000  # half of the mantissa: added to the bits of 1.5·2^k or more, it carries into the exponent


def bounds(levels: tuple[int, ...], rounding: str = "paper") -> tuple[float, ...]:
    """Return where G jumps, in units of a: y_i for `paper` (eq. 11), (y_{i−1} + y_i + 1)/2 for `nearest`.

    Subtract ½ and multiply by the step to get the thresholds on |x|. These two roundings agree wherever
    levels are consecutive. `thrifty` fires the level of least (|x|/step − y)² + ½·(nonzero signed binary digits of y): its
    jumps are those of `nearest`, moved by a quarter of the digits that the higher level has more, per distance of the
    levels, in eighths.

    >>> bounds((1, 2, 4, 8))
    (1.0, 2.0, 4.0, 8.0)
    >>> bounds((1, 2, 4, 8), "nearest")
    (1.0, 2.0, 3.5, 6.5)
    >>> bounds((1, 2, 3, 4), "thrifty")
    (1.25, 2.0, 3.25, 3.75)
    """
    if rounding not in ROUNDINGS:
        raise unknown("rounding", rounding, ROUNDINGS)
    if rounding == "paper":
        return tuple(float(y) for y in levels)
    pairs = tuple(zip((0, *levels), levels, strict=False))
    # From 2**23 on, float32 has no halves, so a ≥ n + ½ is the same as a ≥ n + 1, which is representable.
    middles = tuple(d / 2 if (d := low + high + 1) < 2**24 else float(-(-d // 2)) for low, high in pairs)
    if rounding == "nearest":
        return middles
    moves = (round(2 * (_digits(high) - _digits(low)) / (high - low)) / 8 for low, high in pairs)
    return tuple(m + move if m < 2**20 else m for m, move in zip(middles, moves, strict=True))


def _digits(y: int) -> int:
    """Return the number of nonzero signed binary digits: where y and 3y differ."""
    return (y ^ 3 * y).bit_count()


def fire(a: Tensor, levels: Sequence[int], jumps: Sequence[float]) -> Tensor:
    """G(a) by definition (eq. 10), in the precision of a: the largest level whose bound is ≤ a, 0 below the first; NaN stays NaN.

    >>> fire(torch.tensor([0.5, 0.99, 1.0, 3.9, 4.0, 1e9]), (1, 2, 4), bounds((1, 2, 4)))
    tensor([0., 0., 1., 2., 4., 4.])
    """
    table, at = (torch.tensor(numbers, dtype=a.dtype, device=a.device) for numbers in ((0, *levels), jumps))
    passed = torch.bucketize(a.contiguous(), at, right=True)
    # bucketize sorts NaN to the top; the added zero is NaN where a is.
    return table[passed] + a.clamp(max=1) * 0


def finest(jumps: Sequence[float]) -> float:
    """Return the least of 1, 2, 4 and 8 that makes all bounds whole numbers; ∞ if none does, as in a file of others."""
    return next((n for n in (1, 2, 4, 8) if all((n * jump).is_integer() for jump in jumps)), math.inf)


def fire_table(levels: Sequence[int], jumps: Sequence[float]) -> tuple[int, list[int]]:
    """Return (n, table) with G(a) = table[min(⌊n·a⌋, last)]: n·bound is a whole number."""
    whole, counts = int(finest(jumps)), (0, *levels)
    return whole, [counts[bisect_right(jumps, place / whole)] for place in range(int(whole * jumps[-1]) + 1)]


def fire_lookup(a: Tensor, whole: int, table: Tensor) -> Tensor:
    """G(a) = table[min(⌊whole·a⌋, last)]; NaN stays NaN. A search among the bounds takes 30 times as long."""
    place = (a * whole).clamp(min=0).fmin(a.new_full((), len(table) - 1)).int()  # the last for NaN, too
    return table.to(a.device).index_select(0, place.flatten()).view(a.shape) + a.clamp(max=1) * 0


def fire_linear(a: Tensor, top: int) -> Tensor:
    """G(a) = min(⌊a⌋, top), for levels 1 … top and either rounding."""
    return a.floor().clamp(max=top)


def fire_mixed(a: Tensor, M: int, tail: int, rounding: str = "paper") -> Tensor:
    """G(a) = ⌊a⌋ for a < M, else M − 1 + min(2^⌊log2(a − M + 1)⌋, 2^tail), for eq. 12 and rounding `paper`.

    With `nearest` the power of two is the nearest to a − M + ½ (half-way goes up). The difference is exact in
    float32: below 2**24 for `paper`, below 2**23 for `nearest`; and above, the result saturates.
    """
    offset, carry = (M - 1, 0) if rounding == "paper" else (M - 0.5, HALF)
    # Dense and sparse parts are added, not selected: below M the power is 1, above M the floor is M.
    # The mask loses a NaN, and the floor keeps it.
    return a.floor().clamp(max=M) + (power_of_two((a - offset).clamp(1, 2**tail), carry) - 1)


def power_of_two(a: Tensor, carry: int = 0) -> Tensor:
    """Return the largest power of two not above a, or with `carry=HALF` the nearest; infinity for NaN."""
    pattern = a.view(torch.int32)
    return ((pattern + carry if carry else pattern) & EXPONENT).view(torch.float32)


def recognize(levels: tuple[int, ...]) -> tuple[int, int] | None:
    """Return (M, tail) if the levels are those of eq. 12 for some M and tail, else None.

    Linear levels have tail 0 and exponential ones M = 1.

    >>> recognize((1, 2, 3, 4, 6, 10)), recognize((1, 2, 3)), recognize((1, 2, 4)), recognize((1, 3))
    ((3, 3), (3, 0), (1, 2), None)
    """
    run = next((k for k, y in enumerate(levels) if y != k + 1), len(levels))
    # The first level of a tail, M − 1 + 2, still continues the run.
    M, tail = (run, 0) if run == len(levels) else (run - 1, len(levels) - run + 1)
    fits = M >= 1 and M - 1 + (1 << min(tail, 64)) == levels[-1] and mixed_levels(M, tail) == levels
    return (M, tail) if fits else None


@dataclass(frozen=True, eq=False)
class FireFunction:
    """G for some levels and a rounding: `function(a)` returns the counts of coordinates a."""

    levels: tuple[int, ...]
    rounding: str
    bounds: tuple[float, ...]
    pattern: tuple[int, int] | None  # (M, tail) where the closed form of eq. 12 is exact in float32
    form: Callable[[Tensor], Tensor]  # the fastest of the forms above

    def __call__(self, a: Tensor) -> Tensor:
        return self.form(a)

    def __reduce__(self) -> tuple[Any, ...]:
        # a copy is the same function: plans compare by identity
        return fire_function, (self.levels, self.rounding)


@lru_cache(maxsize=1024)
def fire_function(levels: tuple[int, ...], rounding: str = "paper") -> FireFunction:
    """Return G for these levels: a closed form where one is exact, else a lookup; the counts are the same."""
    jumps = bounds(levels, rounding)
    pattern = None if rounding == "thrifty" else recognize(levels)
    if pattern and pattern[1] and rounding == "nearest" and levels[-1] > 2**22:
        pattern = None  # there the closed form is not exact in float32
    form: Callable[[Tensor], Tensor]
    if pattern is not None:
        M, tail = pattern
        form = partial(fire_mixed, M=M, tail=tail, rounding=rounding) if tail else partial(fire_linear, top=M)
    elif finest(jumps) * jumps[-1] <= TABLE:
        whole, table = fire_table(levels, jumps)
        form = partial(fire_lookup, whole=whole, table=torch.tensor(table, dtype=torch.float32))
    else:
        form = partial(fire, levels=levels, jumps=jumps)
    return FireFunction(levels, rounding, jumps, pattern, form)


def fire_compared(a: Tensor, levels: Sequence[float], jumps: Sequence[float]) -> Tensor:
    """G(a) by one comparison for each level, in the precision of a."""
    total = torch.zeros_like(a)
    for before, level, jump in zip((0, *levels), levels, jumps, strict=False):
        total = total + (a >= jump).to(a.dtype) * (level - before)
    return total


def defined_by(levels: tuple[int, ...], jumps: tuple[float, ...]) -> FireFunction:
    """Return G of a number, for bounds that a file names: in the precision of its input, without bit patterns.

    Every runtime has these functions, and no optimizer can change them by rounding differently.
    """
    if levels == jumps == tuple(range(1, len(levels) + 1)):
        form: Callable[[Tensor], Tensor] = partial(fire_linear, top=levels[-1])
    elif finest(jumps) * jumps[-1] <= TABLE:
        form = partial(_look_up, *fire_table(levels, jumps))
    else:
        form = partial(fire_compared, levels=levels, jumps=jumps)
    return FireFunction(levels, "", jumps, None, form)


def _look_up(whole: int, table: list[int], a: Tensor) -> Tensor:
    place = (a * whole if whole > 1 else a).clamp(max=len(table) - 1).long()
    return torch.tensor(table, dtype=a.dtype).index_select(0, place.flatten()).view(a.shape)
