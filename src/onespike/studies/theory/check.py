"""All claims over many random cases: the table of `onespike reproduce theorems`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from onespike.studies.theory.claims import Claim, equation_5, theorem_1, theorem_2, theorem_3


@dataclass(frozen=True)
class Row:
    """One claim over all cases: the worst distance from failing (an equality has 0 at best), and the first that failed."""

    name: str
    statement: str
    tried: int
    held: int
    margin: float
    counterexample: str = ""

    @property
    def holds(self) -> bool:
        return self.tried == self.held


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


def _threshold(rng: random.Random) -> Fraction:
    return Fraction(rng.randint(1, 12), rng.randint(1, 6))


def draw_equation_5(rng: random.Random) -> Claim:
    """Draw any input, of either sign and above the threshold."""
    threshold, grid = _threshold(rng), Grid(rng)
    x = [grid.between(-3, 3) * threshold for _ in range(rng.randint(1, 12))]
    return equation_5(x, threshold, grid.between(-1, 1) * threshold)


def draw_theorem_1(rng: random.Random) -> Claim:
    """Draw 0 ≤ x(t) ≤ θ, both ends included; N = T or the paper's T + 1."""
    threshold, grid = _threshold(rng), Grid(rng)
    x = [grid.between(0, 1) * threshold for _ in range(rng.randint(1, 16))]
    return theorem_1(x, threshold, grid.below() * threshold, len(x) + rng.randint(0, 1))


def draw_theorem_2(rng: random.Random) -> Claim:
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
    return theorem_2(x, weights, thresholds, [grid.below() * threshold for threshold in thresholds])


def draw_theorem_3(rng: random.Random) -> Claim:
    """Draw inputs of both signs, up to three thresholds high."""
    thresholds, grid = (_threshold(rng), _threshold(rng)), Grid(rng)
    x = [grid.between(-3, 3) * rng.choice(thresholds) for _ in range(rng.randint(1, 12))]
    return theorem_3(x, thresholds, (grid.below() * thresholds[0], grid.below() * thresholds[1]))


DRAWS: dict[str, Callable[[random.Random], Claim]] = {
    "eq. 5": draw_equation_5,
    "theorem 1": draw_theorem_1,
    "theorem 2": draw_theorem_2,
    "theorem 3": draw_theorem_3,
}


def check_claim(name: str, draw: Callable[[random.Random], Claim], trials: int, seed: int) -> Row:
    """Draw `trials` cases of a claim and count those that hold."""
    # Seeded by name too: a claim gets the same cases whether or not others are checked before it.
    rng = random.Random(f"{seed}:{name}")  # noqa: S311 (no secret)
    claims = [draw(rng) for _ in range(trials)]
    failed = [claim for claim in claims if not claim.holds]
    margin = float(min(claim.margin for claim in claims))
    example = f"{failed[0].case}: not {failed[0]}" if failed else ""
    return Row(name, claims[0].statement, trials, trials - len(failed), margin, example)


def check_all(trials: int = 200, seed: int = 0) -> list[Row]:
    """Check every claim over `trials` random cases each, in exact rationals."""
    return [check_claim(name, draw, trials, seed) for name, draw in DRAWS.items()]
