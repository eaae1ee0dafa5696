from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import Tensor

from contract.neuron_contract import bits, needs_cpp
from onespike.energy.columns import naf_weight
from onespike.passes.layout import digit_levels
from onespike.spikes import fire_function, mixed_levels
from onespike.spikes.fire_functions import ROUNDINGS, bounds, defined_by, fire

SIZES = (1, 2, 3, 4, 7, 8, 11, 12)


def test_table_of_the_midpoints() -> None:
    """|x|/step = 12.9 lies nearer to 11 than to 15, and 13 is the tie, which goes up."""
    a = torch.tensor([9.9, 10.0, 12.9, 13.0]) + 0.5
    assert fire(a, mixed_levels(8), bounds(mixed_levels(8))).tolist() == [9, 9, 11, 11]
    assert fire(a, mixed_levels(8), bounds(mixed_levels(8), "nearest")).tolist() == [9, 11, 11, 15]


def test_bounds_are_float32_numbers() -> None:
    levels = (1, 2**23 - 2, 2**23 + 2, 2**24 - 3, 2**24 - 1, 2**24)
    for rounding in ROUNDINGS:
        jumps = bounds(levels, rounding)
        assert torch.tensor(jumps, dtype=torch.float32).double().tolist() == list(jumps)
    # (y + y' + 1)/2 = 2**24 − 3/2 has no float32; no coordinate lies between it and 2**24 − 1.
    assert bounds(levels, "nearest")[4] == 2**24 - 1


@pytest.mark.parametrize(
    "levels", [mixed_levels(16, 0), mixed_levels(8), digit_levels(2, 64), digit_levels(3, 64)]
)
def test_thrifty_levels_are_those_of_least_error_and_digits(levels: tuple[int, ...]) -> None:
    """By search over all levels; apart from where a jump was moved to the next eighth."""
    x = torch.arange(0, 70, 0.03125).double() + 0.01
    every = torch.tensor((0, *levels))
    worth = (x[:, None] - every).square() + 0.5 * naf_weight(every)
    found = fire((x + 0.5).float(), levels, bounds(levels, "thrifty"))
    excess = worth.gather(1, (every == found[:, None]).int().argmax(1)[:, None])[:, 0] - worth.min(1).values
    distance = torch.tensor([b - a for a, b in zip((0, *levels), levels, strict=False)]).max()
    assert float(excess.max()) <= float(distance) / 8
    assert float((excess > 1e-9).double().mean()) < 0.05
    jumps = bounds(levels, "thrifty")
    assert list(jumps) == sorted(set(jumps))


def neighbors(x: Tensor, reach: int = 2) -> Tensor:
    """x and the representable numbers on both sides of it."""
    found, low, high = [x], x, x
    for _ in range(reach):
        low = torch.nextafter(low, torch.full_like(low, -torch.inf))
        high = torch.nextafter(high, torch.full_like(high, torch.inf))
        found += [low, high]
    return torch.cat(found)


def coordinates(levels: tuple[int, ...], dtype: torch.dtype, step: float) -> Tensor:
    """a = |x|/step + ½ for inputs of this type: every threshold, its neighbors and a dense sweep."""
    size = torch.tensor(step, dtype=torch.float32)
    thresholds = torch.tensor([(y - 0.5) * step for y in levels], dtype=torch.float64).to(dtype)
    dense = torch.linspace(0, 1.2 * step * levels[-1], 3000, dtype=torch.float64).to(dtype)
    octaves = (step * torch.exp2(torch.linspace(-3, 26, 3000, dtype=torch.float64))).to(dtype)
    limits = torch.finfo(dtype)
    ends = torch.tensor([0.0, torch.inf, torch.nan, limits.max, limits.tiny], dtype=dtype)
    x = torch.cat([neighbors(thresholds), dense, octaves, ends])
    around = neighbors(torch.tensor(bounds(levels), dtype=torch.float32))
    return torch.cat([x.float().abs() / size + 0.5, around])


@pytest.mark.parametrize("rounding", ["paper", "nearest"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("step", [1.0, 0.0035, 1 / 3])
def test_closed_forms_equal_the_definition_bit_for_bit(
    dtype: torch.dtype, step: float, rounding: str
) -> None:
    for size in SIZES:
        tails = (mixed_levels(size, tail) for tail in (size, 0, 1, 5, 12))
        for levels in (*tails, mixed_levels(1, 2 * size - 1), mixed_levels(2 * size, 0)):
            function, jumps = fire_function(levels, rounding), bounds(levels, rounding)
            assert function.pattern is not None or levels[-1] > 2**22
            a = torch.cat([coordinates(levels, dtype, step), neighbors(torch.tensor(jumps))])
            expected, counts, nan = fire(a, levels, jumps), function(a), a.isnan()
            assert torch.equal(expected.isnan(), nan) and torch.equal(counts.isnan(), nan)
            assert torch.equal(bits(counts[~nan]), bits(expected[~nan])), (size, levels, step)


@pytest.mark.parametrize("rounding", ["paper", "nearest"])
@pytest.mark.parametrize(
    "levels",
    [
        (1, 2, 3, 4, 6, 11),
        (2, 3),
        (1, 3, 4),
        (3, 2**15 - 1),
        (3, 2**18),
        mixed_levels(64, 8),
        mixed_levels(3, 22),
    ],
)
def test_any_levels_equal_the_definition_bit_for_bit(levels: tuple[int, ...], rounding: str) -> None:
    function = fire_function(levels, rounding)
    jumps = torch.tensor(bounds(levels, rounding))
    a = torch.cat([coordinates(levels, torch.float32, 0.7), neighbors(jumps)])
    assert function(a)[a.isnan()].isnan().all()
    a = a[~a.isnan()]
    assert torch.equal(bits(function(a)), bits(fire(a, levels, bounds(levels, rounding))))
    assert torch.equal(pickle.loads(pickle.dumps(function))(a), function(a))


@pytest.mark.compiles
@needs_cpp
@pytest.mark.parametrize("levels", [mixed_levels(8), (1, 5, 6)])
def test_compiled_code_keeps_every_bit(levels: tuple[int, ...]) -> None:
    function = fire_function(levels)
    a = coordinates(levels, torch.float32, 0.3)
    torch._dynamo.reset()
    found = torch.compile(lambda a: function(a), fullgraph=True)(a)
    assert torch.equal(found.isnan(), a.isnan())
    assert torch.equal(bits(found[~a.isnan()]), bits(function(a)[~a.isnan()]))


@pytest.mark.parametrize("bound", [2.3, float("nan")])
def test_bounds_that_a_file_names_are_compared(bound: float) -> None:
    """No table has a place for them."""
    counts = defined_by((1, 2), (1.0, bound))(torch.tensor([0.5, 1.0, 2.29, 2.31]))
    assert counts.tolist() == [0, 1, 1, 1 if math.isnan(bound) else 2]
