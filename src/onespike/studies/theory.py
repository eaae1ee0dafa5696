"""The paper's theorems: eq. 5 and Theorems 1 to 3 as functions that return both sides, and their table over random cases.

Numbers are exact rationals, since floats would cause false failures.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import mean
from typing import Any

Vector = Sequence[Fraction]
Sides = tuple[Fraction, Fraction]


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
    """One instance of a statement, with both sides entry by entry; `relation` is = or ≤."""

    statement: str
    left: list[Fraction]
    right: list[Fraction]
    relation: str = "="

    @property
    def margin(self) -> Fraction:
        """Return the distance from failing; negative if it fails. An equality has margin 0 at best."""
        gaps = [right - left for left, right in zip(self.left, self.right, strict=True)]
        return min(gaps) if self.relation == "≤" else min(-abs(gap) for gap in gaps)

    def __str__(self) -> str:
        sides = zip(self.left, self.right, strict=True)
        return ", ".join(f"{left} {self.relation} {right}" for left, right in sides)


def equation_5(x: Vector, threshold: Fraction, initial: Fraction) -> Claim:
    """|x̄ − ō| = |v(T) − v(0)|/T for any input of an integrate-and-fire neuron (eq. 5)."""
    outputs, membrane = integrate_fire(x, threshold, initial)
    left, right = abs(mean(x) - mean(outputs)), abs(membrane - initial) / len(x)
    return Claim("|x̄ − ō| = |v(T) − v(0)|/T", [left], [right])


def theorem_1(x: Vector, threshold: Fraction, initial: Fraction, count: int) -> Claim:
    """ō_IF over T steps = o_M in one, with θ_M = θ/T, v_M(0) = v(0)/T and N = `count` ≥ T (eqs. 17–27).

    It holds for 0 ≤ x(t) ≤ θ and 0 ≤ v(0) < θ. N = T suffices; the paper asks for N ≥ T + 1. It also
    allows v(0) = θ, which is too weak: from there x ≡ θ keeps v(T) = θ.
    """
    timesteps = len(x)
    left = mean(integrate_fire(x, threshold, initial)[0])
    right = multi_threshold(mean(x) + initial / timesteps, threshold / timesteps, count)
    return Claim("ō_IF = o_M", [left], [right])


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
    return Claim("x̄_IF of every layer = x_M of that layer", left, right)


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
    residue = abs(sign * (v_up - v_down) + initial[other])
    left, right = abs(mean(up) - mean(down) - multi), (residue + thresholds[side]) / timesteps
    return Claim("|ō_IF − o_M| ≤ (C_v + C_θ)/T", [left], [right], "≤")


class Grid:
    """Numbers k/d·θ with one small d per case, so that sums often equal a threshold exactly."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.parts = rng.choice((1, 2, 3, 4, 6, 12))

    def between(self, low: int, high: int) -> Fraction:
        """Return a multiple of 1/d in [low, high]."""
        return Fraction(self.rng.randint(low * self.parts, high * self.parts), self.parts)

    def below(self) -> Fraction:
        """Return a multiple of 1/d in [0, 1), or ½, where the neurons start."""
        return self.rng.choice((Fraction(1, 2), Fraction(self.rng.randrange(self.parts), self.parts)))


Case = tuple[Callable[..., Claim], tuple[Any, ...]]  # a claim and its arguments


def _threshold(rng: random.Random) -> Fraction:
    return Fraction(rng.randint(1, 12), rng.randint(1, 6))


def draw_equation_5(rng: random.Random) -> Case:
    """Draw any input, of either sign and above the threshold."""
    threshold, grid = _threshold(rng), Grid(rng)
    x = [grid.between(-3, 3) * threshold for _ in range(rng.randint(1, 12))]
    return equation_5, (x, threshold, grid.between(-1, 1) * threshold)


def draw_theorem_1(rng: random.Random) -> Case:
    """Draw 0 ≤ x(t) ≤ θ, both ends included; N = T or the paper's T + 1."""
    threshold, grid = _threshold(rng), Grid(rng)
    x = [grid.between(0, 1) * threshold for _ in range(rng.randint(1, 16))]
    return theorem_1, (x, threshold, grid.below() * threshold, len(x) + rng.randint(0, 1))


def draw_theorem_2(rng: random.Random) -> Case:
    """Draw two to four layers of one to three cells: gains up to the bound, the last layer of either sign."""
    grid, depth, steps = Grid(rng), rng.randint(2, 4), rng.randint(1, 8)
    widths = [rng.randint(1, 3) for _ in range(depth + 1)]
    thresholds = [_threshold(rng) for _ in range(depth)]
    weights: list[list[list[Fraction]]] = []
    for layer in range(depth):
        rows = [[Fraction(rng.randint(0, 4)) for _ in range(widths[layer])] for _ in range(widths[layer + 1])]
        if layer + 1 < depth:
            gain = thresholds[layer + 1] / thresholds[layer] * rng.choice((Fraction(1), Fraction(2, 3)))
            rows = [[w * gain / max(sum(row), 1) for w in row] for row in rows]
        else:
            rows = [[w * rng.choice((-1, 1)) for w in row] for row in rows]
        weights.append(rows)
    x = [[grid.between(0, 1) * thresholds[0] for _ in range(widths[0])] for _ in range(steps)]
    return theorem_2, (x, weights, thresholds, [grid.below() * threshold for threshold in thresholds])


def draw_theorem_3(rng: random.Random) -> Case:
    """Draw inputs of both signs, up to three thresholds high."""
    thresholds, grid = (_threshold(rng), _threshold(rng)), Grid(rng)
    x = [grid.between(-3, 3) * rng.choice(thresholds) for _ in range(rng.randint(1, 12))]
    return theorem_3, (x, thresholds, (grid.below() * thresholds[0], grid.below() * thresholds[1]))


DRAWS = {
    "eq. 5": draw_equation_5,
    "theorem 1": draw_theorem_1,
    "theorem 2": draw_theorem_2,
    "theorem 3": draw_theorem_3,
}


@dataclass(frozen=True)
class Row:
    """One claim over all cases: the worst distance from failing (an equality has 0 at best), and the first that failed."""

    name: str
    statement: str
    tried: int
    held: int
    margin: float
    counterexample: str = ""


def check_claim(name: str, draw: Callable[[random.Random], Case], trials: int, seed: int) -> Row:
    """Draw `trials` cases of a claim and count those that hold."""
    # Seeded by name too: a claim gets the same cases whether or not others are checked before it.
    rng = random.Random(f"{seed}:{name}")  # noqa: S311 (no secret)
    margins, failed = [], []
    for function, arguments in (draw(rng) for _ in range(trials)):
        claim = function(*arguments)
        margins.append(claim.margin)
        if claim.margin < 0:
            failed.append(f"{function.__name__}{arguments}: not {claim}")
    return Row(name, claim.statement, trials, trials - len(failed), float(min(margins)), *failed[:1])


def check_all(trials: int = 200, seed: int = 0) -> list[Row]:
    """Check every claim over `trials` random cases each, in exact rationals."""
    return [check_claim(name, draw, trials, seed) for name, draw in DRAWS.items()]
