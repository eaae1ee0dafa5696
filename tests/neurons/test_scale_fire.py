from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.neuron_contract import bits, inputs, needs_cpp
from onespike import kernels
from onespike.energy.columns import READINGS
from onespike.energy.ledger import totals
from onespike.errors import OnespikeError, UsageError
from onespike.neurons import Scale, ScaleFire
from onespike.spikes import SpikeCode, fire_function, mixed_levels

M = 8
LEVELS = mixed_levels(M)
STEPS = st.floats(2.0**-10, 2.0**10, width=32)
VALUES = st.lists(st.floats(-1e5, 1e5, width=32), min_size=1, max_size=50)
ROUNDINGS = st.sampled_from(["paper", "nearest"])


def test_table_of_equations_11_to_14() -> None:
    """λθ⁺ = 0.25 and λθ⁻ = 0.125: numbers a reader can check by hand."""
    x = torch.tensor([0.0, 0.124, 0.125, 0.374, 0.375, 2.124, 2.125, 2.6, 2.625, 65.6, 65.625, 1e6])
    cell = ScaleFire(1.0, 0.5, levels=LEVELS, scale=Scale(0.25))
    counts = [0, 0, 1, 1, 2, 8, 9, 9, 11, 135, 263, 263]
    assert cell.spikes(x).tolist() == counts
    assert cell.spikes(-x / 2).tolist() == [-c for c in counts]
    assert cell(x).tolist() == [c / 4 for c in counts]
    assert cell(-x / 2).tolist() == [-c / 8 for c in counts]


@settings(max_examples=150, deadline=None)
@given(VALUES, STEPS, ROUNDINGS)
def test_error_is_half_a_step_in_the_dense_levels_and_a_gap_beyond(
    values: list[float], step: float, rounding: str
) -> None:
    x = torch.tensor(values)
    y = ScaleFire(step, step, levels=LEVELS, rounding=rounding)(x).double()
    for value, output in zip(x.double().tolist(), y.tolist(), strict=True):
        units, wrong = abs(value) / step, abs(value - output) / step
        slack = 1e-6 * (units + 1)
        if units <= M + 1.5:
            assert wrong <= 0.5 + slack
        elif units <= LEVELS[-1]:
            below = max(level for level in LEVELS if level <= units + 0.5)
            gap = min((level for level in LEVELS if level > below), default=LEVELS[-1]) - below
            assert wrong <= max(gap / 2 if rounding == "nearest" else gap, 0.5) + slack
        else:
            assert abs(output) == pytest.approx(step * LEVELS[-1])


@settings(max_examples=100, deadline=None)
@given(VALUES, STEPS, ROUNDINGS)
def test_odd_monotone_and_decoded(values: list[float], step: float, rounding: str) -> None:
    x = torch.tensor(values).sort().values
    cell = ScaleFire(step, step, levels=LEVELS, rounding=rounding, scale=Scale(0.3))
    y = cell(x)
    assert torch.equal(cell(-x), -y)
    assert (y.diff() >= 0).all()
    assert torch.equal(bits(y), bits(cell.decode(cell.spikes(x))))
    # Zero is +0 on both sides, as an integer spike is.
    assert not torch.signbit(y[y == 0]).any()


@settings(max_examples=100, deadline=None)
@given(VALUES, STEPS, STEPS, st.integers(-12, 12))
def test_scaling_input_and_thresholds_by_a_power_of_two_scales_the_output(
    values: list[float], positive: float, negative: float, power: int
) -> None:
    x, c = torch.tensor([v if abs(v) > 1e-20 else 0.0 for v in values]), math.ldexp(1.0, power)
    one = ScaleFire(positive, negative, levels=LEVELS)
    other = ScaleFire(positive * c, negative * c, levels=LEVELS)
    assert torch.equal(other(c * x), c * one(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_coordinate_is_float32_whatever_the_input(dtype: torch.dtype) -> None:
    """263 is not a bfloat16 number: the count must not pass through the input's type."""
    cell = ScaleFire(0.01, 0.02, levels=LEVELS)
    x = inputs(dtype)
    assert torch.equal(cell.counts(x), cell.counts(x.float()))
    assert torch.equal(cell(x), cell(x.float()).to(dtype))
    assert cell.counts(torch.full((1,), 9.0, dtype=dtype)).item() == 263


def test_division_is_true_division() -> None:
    """With a reciprocal, 0.3·(y − ½) would land a rounding away from its threshold for some y."""
    step = torch.tensor(0.3)
    x = step * (torch.arange(1, 200) - 0.5)
    expected = (x / step + 0.5).floor()
    assert not torch.equal((x * (1 / step) + 0.5).floor(), expected)
    assert torch.equal(SpikeCode(step, None, fire_function(levels=tuple(range(1, 300)))).fire(x), expected)


def test_scale_is_shared_and_validated() -> None:
    shared = Scale(0.5)
    a, b = (ScaleFire(1.0, levels=LEVELS, scale=shared) for _ in range(2))
    shared.set_(0.25)
    assert a(torch.tensor(0.3)) == b(torch.tensor(0.3)) == 0.25
    for wrong in (0.0, -1.0, 1.5, float("nan"), 1e-300, 1e-46, 1e-40):
        with pytest.raises(UsageError, match=r"scale must be in \(0, 1\].*The paper uses"):
            shared.set_(wrong)
    assert shared.value == 0.25


@pytest.mark.compiles
@needs_cpp
def test_a_new_scale_compiles_nothing_new() -> None:
    shared = Scale(0.5)
    cell = ScaleFire(0.8, 0.7, levels=LEVELS, scale=shared)
    x = torch.cat([inputs(), torch.tensor([torch.nan, torch.inf, -torch.inf])])
    torch._dynamo.reset()
    compiled = torch.compile(cell, fullgraph=True)
    with torch.no_grad():
        compiled(x)
        with torch.compiler.set_stance("fail_on_recompile"):
            for value in (0.25, 0.3, 1.0):
                shared.set_(value)
                found, expected = compiled(x), cell(x)
                known = ~x.isnan()
                assert torch.equal(bits(found[known]), bits(expected[known]))
                assert found[~known].isnan().all()
            with pytest.raises(RuntimeError, match="recompil"):
                compiled(x.half())


def test_repr() -> None:
    wide = ScaleFire(0.0, torch.tensor([0.5, 1.0]), levels=(1, 3, 4, 9, 12), rounding="nearest")
    for cell, text in (
        (ScaleFire(0.8312, 0.7901, levels=LEVELS), "θ+=0.8312, θ-=0.7901, levels=1..8+8 tail up to 263"),
        (ScaleFire(0.5, levels=tuple(range(1, 17))), "θ+=0.5, levels=1..16"),
        (wide, "θ-=0.5..1 (2,), levels=1,3,4,9… 5 up to 12, rounding=nearest"),
    ):
        assert repr(cell) == f"ScaleFire(sfn, {text})"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("positive", float("nan"), "must be finite and not negative"),
        ("negative", -1.0, "must be finite and not negative"),
        ("scale.value", -0.25, "scale must be in"),
        ("scale.value", float("nan"), "scale must be in"),
    ],
)
def test_a_damaged_state_is_refused(name: str, value: float, message: str) -> None:
    cell = ScaleFire(0.5, 0.25, levels=LEVELS, scale=Scale(0.25))
    state = cell.state_dict() | {name: torch.tensor(value)}
    with pytest.raises(OnespikeError, match=message):
        cell.load_state_dict(state)


def test_populations_offsets_and_gains_add_up() -> None:
    gain, center = 2.0 ** torch.arange(-1.0, 3.0)[:, None], torch.linspace(-1, 1, 6)
    cell = ScaleFire(torch.rand(6) + 0.1, 0.4, levels=(1, 2, 4), center=center, offset=center / 2, gain=gain)
    x = 3 * torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    code, spikes = cell.code(), cell.spikes(x)
    by_hand = sum(sign * (spikes * sign).clamp(min=0) * unit for sign, unit in code.populations)
    assert code.gain is not None and code.offset is not None
    torch.testing.assert_close(by_hand * code.gain + code.offset, cell(x))
    assert torch.equal(code.coordinate(x), (x - center) / gain)


def test_a_constant_that_is_zero_is_no_offset() -> None:
    cell = ScaleFire(0.5, levels=(1,), center=torch.tensor(0.5), offset=torch.tensor(0.0))
    assert cell.code().offset is None
    assert ScaleFire(0.5, levels=(1,)).code() == SpikeCode(
        torch.tensor(0.5), None, fire_function((1,), "paper")
    )


def test_two_branches_that_fire_in_one_step_are_counted() -> None:
    """The sum of both can be above the largest level of one step."""
    spikes, active, _, *additions = totals(1, torch.tensor([2.0, -1.0, 0.0])).tolist()
    assert (spikes, active, dict(zip(READINGS, additions, strict=True))["binary"]) == (3, 2, 2)
    many = torch.ones(3 * kernels.PART)  # counted in parts, of which one holds the larger sum
    many[-1] = 2
    assert totals(1, many)[0] == len(many) + 1
