"""The paper's theorems by hand, over random cases, and without their conditions."""

from __future__ import annotations

from fractions import Fraction

import pytest

from onespike.studies import theory
from onespike.studies.theory import check_all, check_claim, theorem_1, theorem_2, theorem_3

ZERO, HALF, ONE = Fraction(0), Fraction(1, 2), Fraction(1)


def test_both_sides_by_hand() -> None:
    """x = ½, ½, ½ at θ = 1, v(0) = ½: spikes 1, 0, 1; ⌊(½ + ⅙)·3⌋ = 2 thirds."""
    claim = theorem_1([HALF] * 3, ONE, HALF, 3)
    assert claim.left == claim.right == [Fraction(2, 3)]
    bound = theorem_3([2 * ONE, -ONE], (ONE, ONE), (ZERO, ZERO))
    # Spikes⁺ 1, 1 with v⁺(2) = 0; spikes⁻ 0, 1 with v⁻(2) = 0: ō = ½. One step: ⌊½·2⌋/2 = ½.
    assert (bound.left, bound.right) == ([ZERO], [HALF])


def test_each_theorem_fails_without_its_condition() -> None:
    assert theorem_1([2 * ONE, ZERO, ZERO, -ONE], ONE, HALF, 4).margin < 0
    # The paper's own boundary, v(0) = θ with N ≥ T + 1: T steps fire T times, one step fires T + 1.
    claim = theorem_1([ONE] * 3, ONE, ONE, 4)
    assert (claim.left, claim.right, claim.margin) == ([ONE], [Fraction(4, 3)], Fraction(-1, 3))
    # Currents +1 then −1 have mean 0, but the first has fired before the second arrives.
    opposed = [[[ONE, -ONE]], [[ONE]]]
    assert theorem_2([[ONE, ZERO], [ZERO, ONE]], opposed, [ONE, ONE], [HALF, HALF]).margin < 0
    assert theorem_3([ONE] * 4, (ONE, ONE), (HALF, HALF), 0).margin < 0


def test_check_all_holds_and_repeats_itself() -> None:
    rows = check_all(trials=300, seed=4)
    assert [row.name for row in rows] == ["eq. 5", "theorem 1", "theorem 2", "theorem 3"]
    for row in rows:
        assert row.tried == row.held == 300 and row.margin >= 0, row.counterexample
        assert row.statement and not row.counterexample
    assert rows == check_all(trials=300, seed=4)


def test_the_checker_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    row = check_claim("theorem 1", lambda rng: (theorem_1, ([ONE], ONE, ONE, 4)), trials=5, seed=0)
    assert (row.tried, row.held, row.margin) == (5, 0, -1)
    # a counterexample is a call that can be made again
    assert row.counterexample == f"theorem_1([{ONE!r}], {ONE!r}, {ONE!r}, 4): not 1 = 2"

    # A neuron that needs more than its threshold to fire is another neuron, and the draws notice.
    monkeypatch.setattr(theory, "heaviside", lambda x: int(x > 0))
    failed = {row.name for row in check_all(60, 0) if row.held < row.tried}
    assert failed == {"theorem 1", "theorem 2"}
