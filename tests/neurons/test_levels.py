from __future__ import annotations

import re

import pytest

from onespike.errors import UsageError
from onespike.spikes import mixed_levels, parse_levels


def test_mixed_is_equation_12_and_its_largest_is_the_denominator_of_equation_16() -> None:
    assert mixed_levels(8) == (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15, 23, 39, 71, 135, 263)
    assert mixed_levels(1) == (1, 2)
    assert mixed_levels(3, tail=0) == (1, 2, 3)
    for size in range(1, 24):
        assert mixed_levels(size)[-1] == size - 1 + 2**size
        assert len(mixed_levels(size)) == 2 * size


@pytest.mark.parametrize(
    ("text", "levels", "canonical"),
    [
        ("mixed:3", (1, 2, 3, 4, 6, 10), "mixed:3"),
        (" mixed:3+2 ", (1, 2, 3, 4, 6), "mixed:3+2"),
        ("3", (1, 2, 3, 4, 6, 10), "mixed:3"),
        ("linear:2", (1, 2, 3, 4), "linear:2"),
        ("exponential:2", (1, 2, 4, 8), "exponential:2"),
        ("1,2,4,9", (1, 2, 4, 9), "1,2,4,9"),
        ("5,", (5,), "5,"),
        ("bits:4", tuple(range(1, 16)), "bits:4"),
        ("1,16777216", (1, 2**24), "1,16777216"),  # the largest integer up to which float32 has all
        ("exponential:12", tuple(2**k for k in range(24)), "exponential:12"),
    ],
)
def test_parse(text: str, levels: tuple[int, ...], canonical: str) -> None:
    spec = parse_levels(text)
    assert spec.integers == levels
    assert spec.name == canonical and parse_levels(spec.name) == spec


@pytest.mark.parametrize(
    ("text", "reason", "remedy"),
    [
        ("mixd:8", "unknown kind of levels 'mixd'", "Did you mean 'mixed'"),
        ("paper", "unknown kind of levels 'paper'", "Known: bits, exponential, linear, mixed"),
        ("mixed", "'' is not an integer", "mixed:8"),
        ("mixed:x", "'x' is not an integer", "mixed:8"),
        ("mixed:0", "M ≥ 1", "mixed:8"),
        ("-3", "M ≥ 1", "mixed:8"),
        ("linear:8+2", "no tail", "Write linear:8"),
        ("1,2,2", "must increase", "Write each once"),
        ("0,1", "positive integers", "1,2,4"),
        ("1,a", "'a' is not an integer", "1,2,4"),
        (",", "not an integer", "1,2,4"),
        ("mixed:64", "not exact in float32", "mixed:64+8"),
        ("mixed:24", "not exact in float32", "shorter tail"),
        ("exponential:13", "not exact in float32", "fewer levels"),
        ("linear:999999999999", "not exact in float32", "fewer levels"),
        ("1,16777217", "not exact in float32", "fewer levels"),
    ],
)
def test_refusals_say_why_and_what_to_do(text: str, reason: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=f"{re.escape(reason)}.*{re.escape(remedy)}"):
        parse_levels(text)
