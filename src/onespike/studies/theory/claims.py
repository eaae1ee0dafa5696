"""Eq. 5 and Theorems 1 to 3 as functions that compute both sides for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from onespike.errors import UsageError
from onespike.studies.theory import exact

Vector = Sequence[Fraction]
Sides = tuple[Fraction, Fraction]


@dataclass(frozen=True)
class Claim:
    """One instance of a statement, with both sides computed.

    Attributes:
        name: `eq. 5`, `theorem 1` …
        statement: the claim in symbols.
        left: the left side, entry by entry.
        right: the right side.
        relation: `=` or `≤`, which must hold for every entry.
        case: the input numbers, to reproduce it.
    """

    name: str
    statement: str
    left: tuple[Fraction, ...]
    right: tuple[Fraction, ...]
    relation: str = "="
    case: str = ""

    @property
    def margin(self) -> Fraction:
        """Return the distance from failing; negative if it fails. An equality has margin 0 at best."""
        gaps = [r - l for l, r in zip(self.left, self.right, strict=True)]  # noqa: E741
        return min(gaps) if self.relation == "≤" else min(-abs(gap) for gap in gaps)

    @property
    def holds(self) -> bool:
        return self.margin >= 0


def _require(name: str, condition: bool, needed: str, given: str) -> None:
    if not condition:
        raise UsageError(f"{name} needs {needed}, and here {given}. Choose inputs that meet it.")


def _show(values: Vector) -> str:
    return "[" + " ".join(str(v) for v in values) + "]"


def _check_drive(name: str, x: Vector, threshold: Fraction, initial: Fraction) -> None:
    """Check the condition of Theorem 1. The paper also allows v(0) = θ, and from there x ≡ θ keeps v(T) = θ."""
    _require(name, len(x) > 0, "T ≥ 1", "there are no inputs")
    _require(name, threshold > 0, "θ > 0", f"θ = {threshold}")
    _require(name, all(0 <= v <= threshold for v in x), "0 ≤ x(t) ≤ θ", f"x = {_show(x)}, θ = {threshold}")
    _require(name, 0 <= initial < threshold, "0 ≤ v(0) < θ", f"v(0) = {initial}, θ = {threshold}")


def equation_5(x: Vector, threshold: Fraction, initial: Fraction) -> Claim:
    """|x̄ − ō| = |v(T) − v(0)|/T for any input of an integrate-and-fire neuron (eq. 5).

    >>> equation_5([Fraction(1, 3)] * 4, Fraction(1), Fraction(1, 2)).left
    (Fraction(1, 12),)
    """
    name = "eq. 5"
    _require(name, len(x) > 0, "T ≥ 1", "there are no inputs")
    _require(name, threshold > 0, "θ > 0", f"θ = {threshold}")
    neuron = exact.integrate_fire(x, threshold, initial)
    return Claim(
        name,
        "|x̄ − ō| = |v(T) − v(0)|/T",
        (abs(exact.mean(x) - neuron.mean),),
        (abs(neuron.membrane - initial) / len(x),),
        case=f"x={_show(x)} θ={threshold} v(0)={initial}",
    )


def theorem_1(
    x: Vector, threshold: Fraction, initial: Fraction, count: int | None = None, *, unchecked: bool = False
) -> Claim:
    """ō_IF over T steps = o_M in one, with θ_M = θ/T, v_M(0) = v(0)/T and N = `count` ≥ T (eqs. 17–27).

    N = T, the default, suffices; the paper asks for N ≥ T + 1. `unchecked` skips the conditions, to show what
    happens to the theorem without them: the paper's v(0) ≤ θ is too weak.

    >>> one = Fraction(1)
    >>> theorem_1([one / 3, one, 0 * one], one, one / 2).holds
    True
    >>> theorem_1([one] * 3, one, initial=one, count=4, unchecked=True).holds
    False
    """
    name, steps = "theorem 1", len(x)
    count = steps if count is None else count
    if not unchecked:
        _check_drive(name, x, threshold, initial)
        _require(name, count >= steps, "N ≥ T", f"N = {count}, T = {steps}")
    return Claim(
        name,
        "ō_IF = o_M",
        (exact.integrate_fire(x, threshold, initial).mean,),
        (exact.multi_threshold(exact.mean(x) + initial / steps, threshold / steps, count),),
        case=f"x={_show(x)} θ={threshold} v(0)={initial} N={count}",
    )


def theorem_2(
    x: Sequence[Vector],
    weights: Sequence[Sequence[Vector]],
    thresholds: Vector,
    initial: Vector,
    *,
    unchecked: bool = False,
) -> Claim:
    """A network of IF neurons over T steps = the same network of MTNs in one (eqs. 28–33).

    Neurons of layer l are before the weights of layer l. Every layer that a neuron follows must have
    weights ≥ 0 and row sums ≤ θ_{l+1}/θ_l, which keeps 0 ≤ x(t) ≤ θ there; the last may be anything.

    Args:
        x: the input, one vector per step.
        weights: one matrix per layer.
        thresholds: θ of the neurons before each layer.
        initial: v(0) of the neurons before each layer.
        unchecked: skip the conditions.

    >>> half = Fraction(1, 2)
    >>> two = [[half, half], [Fraction(1), Fraction(0)]]
    >>> theorem_2([[half, Fraction(1)]] * 3, [two, two], [Fraction(1)] * 2, [half] * 2).holds
    True
    """
    name, steps = "theorem 2", len(x)
    if not unchecked:
        _check_network(x, weights, thresholds, initial)
    many, single = [list(v) for v in x], [exact.mean(column) for column in zip(*x, strict=True)]
    left: list[Fraction] = []
    right: list[Fraction] = []
    for matrix, threshold, start in zip(weights, thresholds, initial, strict=True):
        cells = [exact.integrate_fire(column, threshold, start) for column in zip(*many, strict=True)]
        many = [exact.apply(matrix, step) for step in zip(*(c.outputs for c in cells), strict=True)]
        fired = [exact.multi_threshold(v + start / steps, threshold / steps, steps) for v in single]
        single = exact.apply(matrix, fired)
        left += [exact.mean(column) for column in zip(*many, strict=True)]
        right += single
    case = (
        f"x={'; '.join(map(_show, x))} θ={_show(thresholds)} v(0)={_show(initial)} W={_show_layers(weights)}"
    )
    return Claim(name, "x̄_IF of every layer = x_M of that layer", tuple(left), tuple(right), case=case)


def _show_layers(weights: Sequence[Sequence[Vector]]) -> str:
    return " | ".join("; ".join(map(_show, matrix)) for matrix in weights)


def _check_network(
    x: Sequence[Vector], weights: Sequence[Sequence[Vector]], thresholds: Vector, initial: Vector
) -> None:
    name = "theorem 2"
    _require(name, len(x) > 0 and len(weights) > 0, "T ≥ 1 and a layer", "one of them is missing")
    _require(
        name,
        len(weights) == len(thresholds) == len(initial),
        "a threshold and a v(0) for each layer",
        f"there are {len(weights)} layers, {len(thresholds)} thresholds and {len(initial)} v(0)",
    )
    for step in x:
        _check_drive(name, step, thresholds[0], initial[0])
    for layer, matrix in enumerate(weights[:-1]):
        gain = thresholds[layer + 1] / thresholds[layer]
        for row in matrix:
            _require(name, all(w >= 0 for w in row), "weights ≥ 0", f"layer {layer + 1} has {_show(row)}")
            total = sum(row, Fraction(0))
            _require(name, total <= gain, "gains ≤ θ_{l+1}/θ_l", f"layer {layer + 1} has {total} > {gain}")
        start, threshold = initial[layer + 1], thresholds[layer + 1]
        _require(name, 0 <= start < threshold, "0 ≤ v(0) < θ", f"v(0) = {start}, θ = {threshold}")


def theorem_3(
    x: Vector, thresholds: Sides, initial: Sides, count: int | None = None, *, unchecked: bool = False
) -> Claim:
    """|ō_IF − o_M| ≤ (C_v + C_θ)/T for the dual neurons and inputs of either sign and any size (eqs. 34–42).

    For x_M ≥ 0, C_v = |v⁺(T) + v⁻(0) − v⁻(T)| and C_θ = θ⁺; for x_M < 0 the signs are exchanged. The proof
    assumes that N is "sufficiently large": `count` is that N, and None means just enough.

    >>> one = Fraction(1)
    >>> theorem_3([one / 3, -one / 2, 2 * one], (one, 2 * one), (one / 2, one)).holds
    True
    """
    name, steps = "theorem 3", len(x)
    _require(name, steps > 0, "T ≥ 1", "there are no inputs")
    _require(name, min(thresholds) > 0, "θ± > 0", f"θ± = {_show(thresholds)}")
    x_m = exact.mean(x)
    side, other = (0, 1) if x_m >= 0 else (1, 0)
    enough = int((abs(x_m) * steps + initial[side]) // thresholds[side])
    count = enough if count is None else count
    if not unchecked:
        within = all(0 <= v < theta for v, theta in zip(initial, thresholds, strict=True))
        _require(name, within, "0 ≤ v±(0) < θ±", f"v±(0) = {_show(initial)}, θ± = {_show(thresholds)}")
        _require(name, count >= enough, f"N ≥ {enough}, so that nothing is clipped", f"N = {count}")
    branches = exact.dual_integrate_fire(x, thresholds, initial)
    multi = exact.dual_multi_threshold(
        x_m,
        (thresholds[0] / steps, thresholds[1] / steps),
        (initial[0] / steps, initial[1] / steps),
        count,
    )
    residue = abs(branches[side].membrane + initial[other] - branches[other].membrane)
    return Claim(
        name,
        "|ō_IF − o_M| ≤ (C_v + C_θ)/T",
        (abs(branches[0].mean - branches[1].mean - multi),),
        ((residue + thresholds[side]) / steps,),
        relation="≤",
        case=f"x={_show(x)} θ±={_show(thresholds)} v±(0)={_show(initial)} N={count}",
    )
