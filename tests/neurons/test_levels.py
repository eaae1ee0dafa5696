from __future__ import annotations

import itertools
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onespike.errors import CalibrationError, UsageError
from onespike.spikes import mixed_levels, parse_levels
from onespike.spikes.fire_functions import bounds, fire
from onespike.spikes.levels import check_levels, density_levels


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
        ("density:4", None, "density:4"),
    ],
)
def test_parse(text: str, levels: tuple[int, ...] | None, canonical: str) -> None:
    spec = parse_levels(text)
    assert spec.integers == levels
    assert spec.name == canonical and parse_levels(spec.name) == spec


@pytest.mark.parametrize(
    ("text", "reason", "remedy"),
    [
        ("mixd:8", "unknown kind of levels 'mixd'", "Did you mean 'mixed'"),
        ("paper", "unknown kind of levels 'paper'", "Known: bits, density, exponential, linear, mixed"),
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


def error(values: torch.Tensor, counts: torch.Tensor, levels: tuple[int, ...], rounding: str) -> float:
    fired = fire(values.float() + 0.5, levels, bounds(levels, rounding))
    return float((counts * (values - fired).double() ** 2).sum())


@pytest.mark.parametrize("rounding", ["paper", "nearest"])
@pytest.mark.parametrize("seed", range(3))
def test_density_is_the_best_choice_there_is(rounding: str, seed: int) -> None:
    """Against every choice of 4 levels among 9 integers, with the fire function itself as judge."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.arange(0, 9.01, 0.25)
    counts = torch.randint(0, 50, values.shape, generator=generator).double()
    counts[-1] = 1
    found = density_levels(values, counts, 4, rounding)
    choices = ((1, *middle, 9) for middle in itertools.combinations(range(2, 9), 2))
    best = min(error(values, counts, choice, rounding) for choice in choices)
    assert error(values, counts, found, rounding) == pytest.approx(best, rel=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.1, 1e9), st.integers(2, 24), st.integers(0, 99))
def test_density_always_gives_usable_levels(top: float, count: int, seed: int) -> None:
    values = torch.rand(200, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 3 * top
    values[17] = top
    levels = density_levels(values, torch.ones(200), count)
    assert check_levels(levels) == levels
    assert levels[0] == 1
    assert levels[-1] == min(max(round(top), 1), 2**24)
    assert len(levels) == min(count, levels[-1])


def test_density_with_few_integers_takes_them_all() -> None:
    assert density_levels(torch.tensor([0.1, 2.6]), torch.tensor([5, 5]), 16) == (1, 2, 3)
    assert density_levels(torch.tensor([0.1, 2.6]), torch.tensor([5, 0]), 16) == (1,)


@pytest.mark.parametrize("values", [[1.0, float("inf")], []])
def test_density_needs_a_finite_histogram(values: list[float]) -> None:
    with pytest.raises(CalibrationError, match="Calibrate on finite activations"):
        density_levels(torch.tensor(values), torch.ones(len(values)), 4)
