"""The neurons of the theorems in exact rationals: in floats the floor alone would cause false failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Branch:
    """The result of an integrate-and-fire neuron: its outputs o(1) … o(T) and its last membrane v(T)."""

    outputs: tuple[Fraction, ...]
    membrane: Fraction

    @property
    def mean(self) -> Fraction:
        """ō of eq. 4."""
        return mean(self.outputs)


def mean(values: Sequence[Fraction]) -> Fraction:
    """Return the average, exactly.

    >>> mean([Fraction(1), Fraction(2)])
    Fraction(3, 2)
    """
    return sum(values, Fraction(0)) / len(values)


def heaviside(x: Fraction) -> int:
    """H(x) = 1 for x ≥ 0, so that a neuron at its threshold fires."""
    return int(x >= 0)


def integrate_fire(x: Sequence[Fraction], threshold: Fraction, initial: Fraction) -> Branch:
    """Soft reset: h = v + x; o = θ·H(h − θ); v = h − o (eqs. 1–3).

    >>> integrate_fire([Fraction(1, 2)] * 3, Fraction(1), Fraction(1, 2)).mean
    Fraction(2, 3)
    """
    membrane, outputs = initial, []
    for current in x:
        latent = membrane + current
        output = threshold * heaviside(latent - threshold)
        membrane = latent - output
        outputs.append(output)
    return Branch(tuple(outputs), membrane)


def multi_threshold(h: Fraction, threshold: Fraction, count: int) -> Fraction:
    """All spikes at once: o = θ_M·clip(⌊h/θ_M⌋, 0, N) (eq. 6).

    >>> multi_threshold(Fraction(7, 10), Fraction(1, 4), 4)
    Fraction(1, 2)
    """
    return threshold * min(max(h // threshold, 0), count)


def dual_integrate_fire(
    x: Sequence[Fraction], thresholds: tuple[Fraction, Fraction], initial: tuple[Fraction, Fraction]
) -> tuple[Branch, Branch]:
    """Run the positive and the negative part of x through separate branches (eqs. 35–37).

    >>> one = Fraction(1)
    >>> up, down = dual_integrate_fire([one, -2 * one], (one, 2 * one), (0 * one, 0 * one))
    >>> up.mean - down.mean
    Fraction(-1, 2)
    """
    up = integrate_fire([max(current, Fraction(0)) for current in x], thresholds[0], initial[0])
    down = integrate_fire([max(-current, Fraction(0)) for current in x], thresholds[1], initial[1])
    return up, down


def dual_multi_threshold(
    x: Fraction, thresholds: tuple[Fraction, Fraction], initial: tuple[Fraction, Fraction], count: int
) -> Fraction:
    """Eq. 38: the sign of x chooses the branch, and x ≥ 0 takes the positive one.

    >>> dual_multi_threshold(Fraction(-7, 10), (Fraction(1), Fraction(1, 4)), (Fraction(0),) * 2, 4)
    Fraction(-1, 2)
    """
    if x >= 0:
        return multi_threshold(x + initial[0], thresholds[0], count)
    return -multi_threshold(-x + initial[1], thresholds[1], count)


def apply(weights: Sequence[Sequence[Fraction]], x: Sequence[Fraction]) -> list[Fraction]:
    """Return W·x, the linear layer between two neurons."""
    return [sum((w * v for w, v in zip(row, x, strict=True)), Fraction(0)) for row in weights]
