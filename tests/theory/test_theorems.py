from __future__ import annotations

from fractions import Fraction

import pytest

from onespike.studies.theory import check_all, claims
from onespike.studies.theory.check import check_claim
from onespike.studies.theory.claims import Claim, theorem_1, theorem_2, theorem_3

ONE = Fraction(1)
HALF = Fraction(1, 2)


def test_both_sides_by_hand() -> None:
    """x = ½, ½, ½ at θ = 1, v(0) = ½: spikes 1, 0, 1; ⌊(½ + ⅙)·3⌋ = 2 thirds."""
    claim = theorem_1([HALF] * 3, ONE, HALF)
    assert claim.left == claim.right == (Fraction(2, 3),)
    bound = theorem_3([2 * ONE, -ONE], (ONE, ONE), (0 * ONE, 0 * ONE))
    # Spikes⁺ 1, 1 with v⁺(2) = 0; spikes⁻ 0, 1 with v⁻(2) = 0: ō = ½. One step: ⌊½·2⌋/2 = ½.
    assert (bound.left, bound.right) == ((0 * ONE,), (HALF,))


def test_each_theorem_fails_without_its_condition() -> None:
    assert not theorem_1([2 * ONE, 0 * ONE, 0 * ONE, -ONE], ONE, HALF).holds
    # The paper's own boundary, v(0) = θ with N ≥ T + 1: T steps fire T times, one step fires T + 1.
    claim = theorem_1([ONE] * 3, ONE, ONE, 4)
    assert (claim.left, claim.right, claim.margin) == ((ONE,), (Fraction(4, 3),), Fraction(-1, 3))
    # Currents +1 then −1 have mean 0, but the first has fired before the second arrives.
    opposed = [[[ONE, -ONE]], [[ONE]]]
    x = [[ONE, 0 * ONE], [0 * ONE, ONE]]
    assert not theorem_2(x, opposed, [ONE, ONE], [HALF, HALF]).holds
    assert not theorem_3([ONE] * 4, (ONE, ONE), (HALF, HALF), 0).holds


def test_check_all_holds_and_repeats_itself() -> None:
    rows = check_all(trials=300, seed=4)
    assert [row.name for row in rows] == ["eq. 5", "theorem 1", "theorem 2", "theorem 3"]
    for row in rows:
        assert row.holds and row.tried == row.held >= 300, row.counterexample
        assert row.margin >= 0 and row.statement and not row.counterexample
    assert rows == check_all(trials=300, seed=4)


def test_the_checker_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def boundary(rng: object) -> Claim:
        return theorem_1([ONE] * 3, ONE, ONE, 4)

    row = check_claim("theorem 1", boundary, trials=5, seed=0)
    assert not row.holds
    assert (row.tried, row.held) == (5, 0)
    assert row.margin == pytest.approx(-1 / 3)
    assert row.counterexample == "x=[1 1 1] θ=1 v(0)=1 N=4: not 1 = 4/3"

    # A neuron that needs more than its threshold to fire is another neuron, and the draws notice.
    monkeypatch.setattr(claims, "heaviside", lambda x: int(x > 0))
    assert {row.name: row.holds for row in check_all(60, 0)} == {
        "eq. 5": True,
        "theorem 1": False,
        "theorem 2": False,
        "theorem 3": True,
    }
