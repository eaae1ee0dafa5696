"""What every registered neuron promises; a test class inherits this and names its neuron."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from onespike.errors import CalibrationError, UsageError
from onespike.neurons import NEURONS, Neuron, Scale
from onespike.spikes import mixed_levels

needs_cpp = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX") or "g++") is None, reason="torch.compile needs a C++ compiler"
)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def inputs(dtype: torch.dtype = torch.float32) -> Tensor:
    """Both signs, ties, zeros of both signs and values far beyond saturation."""
    generator = torch.Generator().manual_seed(7)
    ties = torch.arange(-48, 49) / 16
    return torch.cat([torch.randn(500, generator=generator), ties, torch.tensor([-0.0, 1e4, -1e4])]).to(dtype)


class NeuronContract:
    """Set `name`; everything else follows."""

    name: ClassVar[str]
    levels: ClassVar[tuple[int, ...]] = mixed_levels(4)

    def make(self, positive: Tensor | float = 0.75, negative: Tensor | float | None = None) -> Neuron:
        kind = NEURONS[self.name]
        if negative is None:
            negative = 0.5 if kind.two_sided else 0.0
        cell = kind(positive, negative, levels=self.levels, scale=Scale(0.3))
        if cell.code().typical is not None:  # steps that depend on the input are those of ones
            cell.typical = None
        return cell

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_forward_is_decode_of_spikes_bit_for_bit(self, dtype: torch.dtype) -> None:
        cell, x = self.make(), inputs(dtype)
        y, spikes = cell(x), cell.spikes(x)
        assert (y.dtype, spikes.dtype, y.shape) == (dtype, torch.int32, x.shape)
        assert torch.equal(bits(y), bits(cell.decode(spikes, dtype)))
        assert torch.equal(cell.code().decode(spikes).to(dtype), y)
        assert spikes.any()

    def test_counts_are_integers_up_to_the_largest(self) -> None:
        cell = self.make()
        counts = cell.counts(inputs())
        assert counts.dtype == torch.float32
        assert torch.equal(counts, counts.round())
        assert counts.max() == cell.largest == cell.code().largest
        assert counts.min() == (-cell.largest if cell.two_sided else 0)
        assert len(cell.code().populations) == 1 + cell.two_sided

    def test_nan_stays_nan_and_infinity_saturates(self) -> None:
        cell = self.make()
        x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0])
        counts = cell.counts(x)
        assert counts[0].isnan()
        assert cell(x)[0].isnan()
        assert counts[1:].tolist() == [cell.largest, -cell.largest if cell.two_sided else 0, 0]
        assert cell.spikes(x)[0] == 0

    def test_monotone(self) -> None:
        y = self.make()(inputs().sort().values)
        assert (y.diff() >= 0).all()

    def test_one_side_silences_the_other(self) -> None:
        x = inputs()
        assert (self.make(0.75, 0.0).counts(x)[x <= 0] == 0).all()
        if NEURONS[self.name].two_sided:
            only = self.make(0.0, 0.5).counts(x)
            assert (only[x >= 0] == 0).all()
            assert torch.equal(only[x < 0], -self.make(0.5, 0.0).counts(-x)[x < 0])

    def test_thresholds_per_channel_may_switch_channels_off(self) -> None:
        x = torch.tensor([[0.5, 0.5], [-0.5, -0.5], [torch.inf, torch.inf], [torch.nan, torch.nan]])
        cell = self.make(torch.tensor([0.0, 0.75]))
        whole = self.make()
        counts = cell.counts(x)
        assert counts[[0, 2], 0].tolist() == [0, 0]
        assert bool(counts[1, 0] < 0) == cell.two_sided
        assert counts[[0, 1, 2], 1].tolist() == whole.counts(x)[[0, 1, 2], 1].tolist()
        assert counts[3].isnan().all()
        assert cell(x)[[0, 2], 0].tolist() == [0, 0]

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_thresholds_stay_float32(self, dtype: torch.dtype) -> None:
        cell = self.make(0.7)
        before = {name: value.clone() for name, value in cell.state_dict().items()}
        cell.to(dtype)
        for name, value in cell.state_dict().items():
            assert value.dtype == torch.float32, name
            assert torch.equal(value, before[name]), name

    def test_follows_the_device(self) -> None:
        for moved in (self.make().to("meta"), self.make().to("meta", torch.float16)):
            assert all((b.device.type, b.dtype) == ("meta", torch.float32) for b in moved.buffers())

    def test_survives_deepcopy_pickle_and_state_dict(self) -> None:
        cell, x = self.make(), inputs()
        other = self.make(9.0, 7.0 if cell.two_sided else 0.0)
        assert not torch.equal(other(x), cell(x))
        other.load_state_dict(cell.state_dict())
        for twin in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell)), other):
            assert torch.equal(bits(twin(x)), bits(cell(x)))

    def test_state_dict_brings_its_sides(self) -> None:
        if not NEURONS[self.name].two_sided:
            pytest.skip("one side only")
        cell, x = self.make(0.75, 0.0), inputs()
        cell.load_state_dict(self.make(0.75, 0.5).state_dict())
        assert torch.equal(cell(x), self.make()(x))

    def test_owns_its_thresholds(self) -> None:
        given = torch.tensor(0.75)
        cell = self.make(given)
        given.fill_(5.0)
        assert cell.positive == 0.75

    @pytest.mark.compiles
    def test_traces_as_one_graph_and_exports(self) -> None:
        cell, x = self.make(), inputs().reshape(4, -1)
        torch._dynamo.reset()
        compiled = torch.compile(cell, fullgraph=True, backend="eager")
        assert torch.equal(bits(compiled(x)), bits(cell(x)))
        exported = torch.export.export(cell, (x,)).module()
        assert torch.equal(bits(exported(x)), bits(cell(x)))

    def test_accepts_strided_and_grad_requiring_inputs(self) -> None:
        cell, x = self.make(), inputs().reshape(4, -1)
        assert torch.equal(cell(x.t()), cell(x).t())
        assert torch.equal(cell(x.clone().requires_grad_()).detach(), cell(x))

    @pytest.mark.parametrize("wrong", [-1.0, torch.nan, torch.inf])
    def test_refuses_unusable_thresholds(self, wrong: float) -> None:
        with pytest.raises(
            CalibrationError, match=rf"{self.name}: the positive threshold must be finite .*Calibrate"
        ):
            self.make(wrong)
        with pytest.raises(CalibrationError, match="the negative threshold"):
            self.make(1.0, torch.tensor([0.1, wrong]))

    def test_refuses_to_be_silent(self) -> None:
        with pytest.raises(UsageError, match=r"both sides are off.*leave the site analog"):
            self.make(0.0, 0.0)

    def test_one_sided_neurons_name_their_dual(self) -> None:
        if NEURONS[self.name].two_sided:
            pytest.skip("two sides")
        with pytest.raises(UsageError, match=f"Use 'dual-{self.name}'"):
            self.make(1.0, 1.0)
        assert NEURONS[f"dual-{self.name}"].two_sided

    def test_refuses_unknown_rounding_and_bad_levels(self) -> None:
        kind = NEURONS[self.name]
        with pytest.raises(UsageError, match="Did you mean 'nearest'"):
            kind(1.0, levels=(1, 2), rounding="nearst")
        with pytest.raises(UsageError, match="must increase"):
            kind(1.0, levels=(2, 1))

    def test_says_what_it_is(self) -> None:
        assert self.make().extra_repr().startswith(f"{self.name}, θ+=0.75, ")

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_gradients_pass_straight_through_where_nothing_is_clipped(self, dtype: torch.dtype) -> None:
        cell, x = self.make(), inputs(dtype).requires_grad_()
        value = cell(x)
        assert torch.equal(bits(value.detach()), bits(cell(x.detach())))
        (gradient,) = torch.autograd.grad(value.sum(), x)
        steps = [float(step) for step in cell.code().units()]
        reach = [steps[0] * (cell.largest + 0.5), steps[1] * (cell.largest + 0.5) or steps[0] / 2]
        clear = ((x.abs() / torch.tensor(reach)[(x < 0).long()]) - 1).abs() > 0.01  # of the ends of the range
        expected = (x < reach[0]) & (x > -reach[1])
        assert torch.equal(gradient[clear], expected[clear].to(dtype))
        assert 0 < expected.sum() < len(x)

    def test_a_channel_that_is_off_has_no_gradient_and_no_nan(self) -> None:
        cell = self.make(torch.tensor([0.0, 0.75]), torch.tensor([0.0, 0.0]))
        x = torch.tensor([[0.1, 0.1], [torch.inf, torch.nan]], requires_grad=True)
        cell(x)[0].sum().backward()
        assert x.grad is not None and x.grad.tolist() == [[0, 1], [0, 0]]
