"""Eq. 5 and Theorems 1 to 3: both sides computed in exact rationals, since floats would cause false failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

Vector = Sequence[Fraction]
Sides = tuple[Fraction, Fraction]


def mean(values: Vector) -> Fraction:
    """ō of eq. 4."""
    return sum(values, Fraction(0)) / len(values)


def heaviside(x: Fraction) -> int:
    """H(x) = 1 for x ≥ 0, so that a neuron at its threshold fires."""
    return int(x >= 0)


def integrate_fire(x: Vector, threshold: Fraction, initial: Fraction) -> tuple[list[Fraction], Fraction]:
    """Outputs o(1) … o(T) and the last membrane v(T), with soft reset: h = v + x; o = θ·H(h − θ); v = h − o (eqs. 1–3)."""
    membrane, outputs = initial, []
    for current in x:
        latent = membrane + current
        outputs.append(threshold * heaviside(latent - threshold))
        membrane = latent - outputs[-1]
    return outputs, membrane


def multi_threshold(h: Fraction, threshold: Fraction, count: int) -> Fraction:
    """All spikes at once: o = θ_M·clip(⌊h/θ_M⌋, 0, N) (eq. 6)."""
    return threshold * min(max(h // threshold, 0), count)


def multiply(weights: Sequence[Vector], x: Vector) -> list[Fraction]:
    """W·x, the linear layer between two neurons."""
    return [sum((w * v for w, v in zip(row, x, strict=True)), Fraction(0)) for row in weights]


@dataclass(frozen=True)
class Claim:
    """One instance of a statement, with both sides entry by entry; `relation` is = or ≤, `case` reproduces it."""

    statement: str
    left: tuple[Fraction, ...]
    right: tuple[Fraction, ...]
    relation: str = "="
    case: str = ""

    @property
    def margin(self) -> Fraction:
        """Return the distance from failing; negative if it fails. An equality has margin 0 at best."""
        gaps = [right - left for left, right in zip(self.left, self.right, strict=True)]
        return min(gaps) if self.relation == "≤" else min(-abs(gap) for gap in gaps)

    @property
    def holds(self) -> bool:
        return self.margin >= 0

    def __str__(self) -> str:
        sides = zip(self.left, self.right, strict=True)
        return ", ".join(f"{left} {self.relation} {right}" for left, right in sides)


def _text(values: Vector) -> str:
    return "[" + " ".join(str(v) for v in values) + "]"


def equation_5(x: Vector, threshold: Fraction, initial: Fraction) -> Claim:
    """|x̄ − ō| = |v(T) − v(0)|/T for any input of an integrate-and-fire neuron (eq. 5)."""
    outputs, membrane = integrate_fire(x, threshold, initial)
    left, right = abs(mean(x) - mean(outputs)), abs(membrane - initial) / len(x)
    case = f"x={_text(x)} θ={threshold} v(0)={initial}"
    return Claim("|x̄ − ō| = |v(T) − v(0)|/T", (left,), (right,), case=case)


def theorem_1(x: Vector, threshold: Fraction, initial: Fraction, count: int | None = None) -> Claim:
    """ō_IF over T steps = o_M in one, with θ_M = θ/T, v_M(0) = v(0)/T and N = `count` ≥ T (eqs. 17–27).

    It holds for 0 ≤ x(t) ≤ θ and 0 ≤ v(0) < θ. N = T, the default, suffices; the paper asks for N ≥ T + 1. It also
    allows v(0) = θ, which is too weak: from there x ≡ θ keeps v(T) = θ.
    """
    timesteps = len(x)
    count = timesteps if count is None else count
    left = mean(integrate_fire(x, threshold, initial)[0])
    right = multi_threshold(mean(x) + initial / timesteps, threshold / timesteps, count)
    case = f"x={_text(x)} θ={threshold} v(0)={initial} N={count}"
    return Claim("ō_IF = o_M", (left,), (right,), case=case)


def theorem_2(
    x: Sequence[Vector], weights: Sequence[Sequence[Vector]], thresholds: Vector, initial: Vector
) -> Claim:
    """A network of IF neurons over T steps = the same network of MTNs in one (eqs. 28–33).

    x is one vector per step; θ and v(0) are of the neurons before each layer. Every layer that a neuron follows must have
    weights ≥ 0 and row sums ≤ θ_{l+1}/θ_l, which keeps 0 ≤ x(t) ≤ θ there; the last may be anything.
    """
    timesteps = len(x)
    many, single = [list(v) for v in x], [mean(column) for column in zip(*x, strict=True)]
    left: list[Fraction] = []
    right: list[Fraction] = []
    for matrix, threshold, start in zip(weights, thresholds, initial, strict=True):
        cells = [integrate_fire(column, threshold, start)[0] for column in zip(*many, strict=True)]
        many = [multiply(matrix, step) for step in zip(*cells, strict=True)]
        fired = [multi_threshold(v + start / timesteps, threshold / timesteps, timesteps) for v in single]
        single = multiply(matrix, fired)
        left += [mean(column) for column in zip(*many, strict=True)]
        right += single
    layers = " | ".join("; ".join(map(_text, matrix)) for matrix in weights)
    case = f"x={'; '.join(map(_text, x))} θ={_text(thresholds)} v(0)={_text(initial)} W={layers}"
    return Claim("x̄_IF of every layer = x_M of that layer", tuple(left), tuple(right), case=case)


def theorem_3(x: Vector, thresholds: Sides, initial: Sides, count: int | None = None) -> Claim:
    """|ō_IF − o_M| ≤ (C_v + C_θ)/T for the dual neurons and inputs of either sign and any size (eqs. 34–42).

    It holds for 0 ≤ v±(0) < θ±. For x_M ≥ 0, C_v = |v⁺(T) + v⁻(0) − v⁻(T)| and C_θ = θ⁺; for x_M < 0 the signs are
    exchanged. The proof assumes that N is "sufficiently large": `count` is that N, and None means just enough.
    """
    timesteps, x_m = len(x), mean(x)
    # eq. 38: the sign of x_M chooses the branch, and x_M ≥ 0 takes the positive one
    sign, side, other = (1, 0, 1) if x_m >= 0 else (-1, 1, 0)
    if count is None:
        count = int((abs(x_m) * timesteps + initial[side]) // thresholds[side])
    # eqs. 35–37: the positive and the negative part of x run through separate branches
    (up, v_up), (down, v_down) = (
        integrate_fire([max(way * v, Fraction(0)) for v in x], threshold, start)
        for way, threshold, start in zip((1, -1), thresholds, initial, strict=True)
    )
    h = abs(x_m) + initial[side] / timesteps
    multi = sign * multi_threshold(h, thresholds[side] / timesteps, count)
    left = abs(mean(up) - mean(down) - multi)
    residue = abs(sign * (v_up - v_down) + initial[other])
    right = (residue + thresholds[side]) / timesteps
    case = f"x={_text(x)} θ±={_text(thresholds)} v±(0)={_text(initial)} N={count}"
    return Claim("|ō_IF − o_M| ≤ (C_v + C_θ)/T", (left,), (right,), "≤", case)
