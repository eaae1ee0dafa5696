"""The code of a site says what its spikes are worth, whichever neuron sent them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from onespike import kernels
from onespike.energy.columns import READINGS
from onespike.energy.spike_counts import totals
from onespike.neurons import NEURONS, Scale, ScaleFire
from onespike.spikes import SpikeCode, fire_function

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(1)) * 3


@pytest.mark.parametrize("name", sorted(NEURONS))
@pytest.mark.parametrize("sides", [(0.5, 0.0), (0.5, 0.3)])
def test_a_value_is_its_decoded_spikes(name: str, sides: tuple[float, float]) -> None:
    kind = NEURONS[name]
    if sides[1] and not kind.two_sided:
        sides = (0.5, 0.0)
    cell = kind(*sides, levels=(1, 2, 3, 5, 9), scale=Scale(0.5) if kind.scaled else None)
    code = cell.settled(X).code()
    assert torch.equal(code.decode(cell.spikes(X)), cell(X))
    assert int(cell.spikes(X).abs().max()) <= code.largest == code.levels[-1]
    assert len(code.populations) == 1 + bool(sides[1])


def test_populations_offsets_and_gains_add_up() -> None:
    gain, center = 2.0 ** torch.arange(-1.0, 3.0)[:, None], torch.linspace(-1, 1, 6)
    cell = ScaleFire(torch.rand(6) + 0.1, 0.4, levels=(1, 2, 4), center=center, offset=center / 2, gain=gain)
    x = X[:4]
    code, spikes = cell.code(), cell.spikes(x)
    by_hand = sum(sign * (spikes * sign).clamp(min=0) * unit for sign, unit in code.populations)
    assert code.gain is not None and code.offset is not None
    torch.testing.assert_close(by_hand * code.gain + code.offset, cell(x))
    assert torch.equal(code.coordinate(x), (x - center) / gain)


def test_a_constant_that_is_zero_is_no_offset() -> None:
    cell = ScaleFire(0.5, levels=(1,), center=torch.tensor(0.5), offset=torch.tensor(0.0))
    assert cell.code().offset is None
    assert ScaleFire(0.5, levels=(1,)).code() == SpikeCode(torch.tensor(0.5), None, fire_function((1,)))


def test_the_code_follows_the_scale() -> None:
    cell = ScaleFire(0.5, 0.25, levels=(1, 2), scale=(shared := Scale(1.0)))
    shared.set_(0.5)
    units: tuple[Tensor, Tensor] = cell.code().units()
    assert [float(unit) for unit in units] == [0.25, 0.125]


def test_two_branches_that_fire_in_one_step_are_counted() -> None:
    """The sum of both can be above the largest level of one step."""
    spikes, active, _, *additions = totals(1, torch.tensor([2.0, -1.0, 0.0])).tolist()
    assert (spikes, active, dict(zip(READINGS, additions, strict=True))["binary"]) == (3, 2, 2)
    many = torch.ones(3 * kernels.PART)  # counted in parts, of which one holds the larger sum
    many[-1] = 2
    assert totals(1, many)[0] == len(many) + 1
