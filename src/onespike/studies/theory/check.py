"""All claims over many random cases: the table of `onespike verify`."""

# ruff: noqa: N806 (M is the paper's name)
from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import torch
from torch import Tensor

from onespike.spikes.fire_functions import bounds, fire, fire_exponential, fire_linear, fire_mixed
from onespike.spikes.levels import exponential_levels, linear_levels, mixed_levels
from onespike.studies.theory.cases import DRAWS
from onespike.studies.theory.claims import Claim


@dataclass(frozen=True)
class Row:
    """One claim and its result.

    Attributes:
        name: the claim.
        statement: the claim in symbols.
        tried: number of cases tried.
        held: number of cases in which it held.
        margin: the worst distance from failing, negative if one failed; an equality has 0 at best.
        counterexample: the first case that failed, or nothing.
    """

    name: str
    statement: str
    tried: int
    held: int
    margin: float
    counterexample: str = ""

    @property
    def holds(self) -> bool:
        return 0 < self.tried == self.held


def check_claim(name: str, draw: Callable[[random.Random], Claim], trials: int, seed: int) -> Row:
    """Draw `trials` cases of a claim and count those that hold."""
    # Seeded by name too: a claim gets the same cases whether or not others are checked before it.
    rng = random.Random(f"{seed}:{name}")  # noqa: S311 (no secret)
    claims = [draw(rng) for _ in range(trials)]
    failed = [claim for claim in claims if not claim.holds]
    example = ""
    if failed:
        worst = failed[0]
        sides = zip(worst.left, worst.right, strict=True)
        shown = ", ".join(f"{l} {worst.relation} {r}" for l, r in sides)  # noqa: E741
        example = f"{worst.case}: not {shown}"
    return Row(
        name,
        claims[0].statement if claims else "",
        tried=trials,
        held=trials - len(failed),
        margin=float(min((claim.margin for claim in claims), default=Fraction(0))),
        counterexample=example,
    )


def sweep(levels: tuple[int, ...], samples: int, seed: int) -> Tensor:
    """Return coordinates to test a fire function at: every bound with its two neighbors, and random ones between."""
    jump = torch.tensor(bounds(levels), dtype=torch.float32)
    around = [torch.nextafter(jump, torch.tensor(way)) for way in (-torch.inf, torch.inf)]
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(samples, generator=generator)
    # Half linearly over the levels, half in octaves, since the tail is sparse.
    spread = torch.cat([uniform * (levels[-1] * 1.5), torch.exp2(uniform * 26 - 1)]) + 0.5
    ends = torch.tensor([0.5, torch.inf, torch.nan, 2.0**24, 2.0**31])
    return torch.cat([jump, *around, spread, ends])


def check_fire(trials: int, seed: int) -> Row:
    """Compare the closed forms with the definition, bit for bit, over many M."""
    tried, differing, worst, example = 0, 0, 0.0, ""
    for M in (1, 2, 3, 5, 8, 11):
        forms: list[tuple[str, tuple[int, ...], Callable[[Tensor], Tensor]]] = [
            (f"linear:{M}", linear_levels(M), partial(fire_linear, top=2 * M)),
            (f"exponential:{M}", exponential_levels(M), partial(fire_exponential, top=2 ** (2 * M - 1))),
            (f"mixed:{M}", mixed_levels(M), partial(fire_mixed, M=M, tail=M)),
            (f"mixed:{M}+12", mixed_levels(M, 12), partial(fire_mixed, M=M, tail=12)),
        ]
        for name, levels, closed in forms:
            a = sweep(levels, trials, seed)
            expected, found = fire(a, levels), closed(a)
            alike = (expected.view(torch.int32) == found.view(torch.int32)) | (
                expected.isnan() & found.isnan()
            )
            tried += a.numel()
            if not bool(alike.all()):
                differing += int((~alike).sum())
                gap = (expected - found).abs()[~alike].nan_to_num(nan=torch.inf)
                worst = max(worst, float(gap.max()))
                first = int((~alike).nonzero()[0])
                example = (
                    example or f"{name} at a={a[first].item()!r}: not {expected[first]} = {found[first]}"
                )
    return Row("fire function", "closed form = definition", tried, tried - differing, 0.0 - worst, example)


def check_all(trials: int = 200, seed: int = 0) -> list[Row]:
    """Check every claim over `trials` random cases each, in exact rationals, and the fire function in float32.

    >>> all(row.holds for row in check_all(trials=5, seed=1))
    True
    """
    rows = [check_claim(name, draw, trials, seed) for name, draw in DRAWS.items()]
    return [*rows, check_fire(trials, seed)]
