"""Integer inference equals a float64 simulation of the same 8-bit weights, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import onespike
from onespike import kernels
from onespike.errors import UsageError
from onespike.integer import common_unit, integer_product, optimize_, quantise

X = torch.randn(64, 5, 12, generator=torch.Generator().manual_seed(1))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(12, 24), nn.LayerNorm(24)
        self.two, self.one, self.last = nn.Linear(24, 20), nn.Linear(20, 16, bias=False), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.one(self.two(self.norm(self.first(x))).relu()))


def snn(**recipe: object) -> nn.Module:
    model, made = Block().eval(), onespike.Recipe(**recipe)
    return onespike.convert(model, onespike.calibrate(model, [X], made), made)


@pytest.fixture
def plain_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with VNNI: torch multiplies, and our own kernel does not."""
    monkeypatch.setattr("onespike.integer._has_byte_units", lambda: True)


def in_units(fast: nn.Linear, plain: nn.Linear, x: Tensor) -> Tensor:
    """What the kernel computes, with its sums in float64: counts of one unit, the step over its multiple."""
    neuron, (q, p) = fast.neurons["linear0_input"], fast.integer.times
    counts, (up, _) = neuron.counts(x).double(), neuron.steps()
    units = q * counts.clamp(min=0) - p * (-counts).clamp(min=0)
    weight, scale = quantise(plain.weight)
    value = (units @ weight.double().t()).float() * (up / q * scale)
    return value if plain.bias is None else value + plain.bias


@pytest.mark.skipif(kernels.native.library() is None, reason="no kernels here")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_kernel_equals_the_float64_simulation(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onespike.integer._has_byte_units", lambda: False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    converted = snn(scale=0.02)
    fast = onespike.optimize(converted, integer_units=True)
    before, after = (n.two.neurons["linear0_input"] for n in (converted, fast))
    assert fast.two.integer.times != (1, 1) and fast.one.integer.times == (1, 1)
    assert (after.negative / before.negative - 1).abs() < 2**-8
    with torch.inference_mode():
        for name, size in (("two", 24), ("one", 20)):
            for rows in (0, 4000, 1, 7, 200):  # 4000: several blocks a thread
                x = 40 * torch.randn(rows, 3, size, generator=torch.Generator().manual_seed(2))
                made, plain = getattr(fast, name), getattr(converted, name)
                assert (
                    made.integer.fused(x.flatten(0, 1), made.neurons["linear0_input"], made.bias) is not None
                )
                assert torch.equal(made(x), in_units(made, plain, x))
        x[1] = torch.nan
        assert made(x)[1].isnan().all() and made(x)[0].isfinite().all()


@pytest.mark.skipif(kernels.native.library() is None, reason="no kernels here")
def test_steps_without_a_common_unit_are_multiplied_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onespike.integer._has_byte_units", lambda: False)
    monkeypatch.setattr(torch, "_int_mm", None)  # torch's plain loop must never run here
    converted = snn()
    before = converted.two.neurons["linear0_input"]
    before.negative.copy_(before.positive * 0.0031)
    fast = onespike.optimize(converted, integer_units=True)
    assert fast.two.integer.times is None
    assert torch.equal(fast.two.neurons["linear0_input"].negative, before.negative)
    x = torch.randn(9, 24, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        assert torch.equal(fast.two(x), simulated(converted.two, x))


def test_one_step_for_both_signs_is_one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onespike.integer._has_byte_units", lambda: False)
    converted = snn(neuron="uniform", levels="bits:8", scale=1.0)
    fast = onespike.optimize(converted, integer_units=True)
    before, after = (n.two.neurons["linear0_input"] for n in (converted, fast))
    assert fast.two.integer.times == (1, 1) and torch.equal(before.negative, after.negative)
    x = torch.randn(9, 24, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        assert torch.allclose(fast.two(x), simulated(converted.two, x), atol=1e-5)


def test_steps_find_a_common_unit_or_stay() -> None:
    assert common_unit(3.0, 2.0, 10) == (3, 2) and common_unit(2.0, 3.0, 10) == (2, 3)
    assert common_unit(1.0, 0.97, 15) is None
    q, p = common_unit(1.234, 0.777, 124) or (1, 0)
    assert abs(p / q / (0.777 / 1.234) - 1) < 2**-8 and max(p, q) <= 124


def simulated(linear: nn.Linear, x: Tensor) -> Tensor:
    """The same linear map with its sums in float64, where integers of this size are exact."""
    neuron = linear.neurons["linear0_input"]
    counts, (up, down) = neuron.counts(x).double(), neuron.steps()
    weight, scale = quantise(linear.weight)
    sums = [
        (part @ weight.double().t()).float() * (step * scale)
        for part, step in ((counts.clamp(min=0), up), ((-counts).clamp(min=0), down))
    ]
    value = sums[0] if not down else sums[0] - sums[1]
    return value if linear.bias is None else value + linear.bias


def test_linear_maps_equal_the_float64_simulation(plain_products: None) -> None:
    converted = snn(scale=0.02)  # so small a step makes counts beyond one byte
    fast = onespike.optimize(converted, integer_units=True)
    with torch.inference_mode():
        for name, size in (("two", 24), ("one", 20)):
            x = 40 * torch.randn(7, 3, size, generator=torch.Generator().manual_seed(2))
            plain = getattr(converted, name)
            assert plain.neurons["linear0_input"].counts(x).max() > 127
            assert torch.equal(getattr(fast, name)(x), simulated(plain, x))
    assert converted.two.weight is not None and not hasattr(converted.two, "integer")  # a copy was changed


def test_equal_steps_need_one_product(plain_products: None, monkeypatch: pytest.MonkeyPatch) -> None:
    converted = snn()
    neuron = converted.two.neurons["linear0_input"]
    neuron.negative.copy_(neuron.positive)
    fast, calls = onespike.optimize(converted, integer_units=True), []
    product = torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: calls.append(1) or product(a, b))
    with torch.inference_mode():
        x = torch.randn(9, 24, generator=torch.Generator().manual_seed(2))
        found = fast.two(x)
        assert len(calls) == 1
        assert torch.allclose(found, simulated(converted.two, x), rtol=1e-5, atol=1e-6)
        neuron.negative.mul_(2)
        onespike.optimize(converted, integer_units=True).two(x)
    assert len(calls) == 3


def test_the_whole_network_follows_the_float_network_with_the_same_weights() -> None:
    fast = onespike.optimize(snn(), integer_units=True)
    float_ = onespike.optimize(snn(), integer_units=False)
    with torch.inference_mode():
        exact, close = fast(X), float_(X)
    assert (exact - close).abs().max() < 1e-4
    assert not torch.equal(close, snn()(X))  # the weights are rounded


@pytest.mark.parametrize("largest", [127, 128, 263, 20000])
def test_counts_of_any_size_are_exact(largest: int) -> None:
    generator = torch.Generator().manual_seed(3)
    counts = torch.randint(-9, 10, (50, 33), generator=generator).float()
    counts[3, 4], counts[40, 0] = largest, -largest
    weight = torch.randint(-127, 128, (11, 33), generator=generator, dtype=torch.int8)
    assert torch.equal(integer_product(counts, weight).double(), counts.double() @ weight.double().t())


def test_spikes_are_counted_as_before_and_scale_still_moves() -> None:
    converted = snn()
    fast = onespike.optimize(converted, integer_units=True)
    ledgers = []
    with torch.inference_mode():
        for network in (converted, fast):
            with onespike.metered(network) as ledger:
                network.two(X[..., :1].expand(-1, -1, 24))
            ledgers.append(ledger)
        assert ledgers[0].ratios() == ledgers[1].ratios()
        before = fast(X)
        onespike.set_scale_(fast, 0.9)
        assert not torch.equal(fast(X), before)


def test_nan_shows() -> None:
    fast = onespike.optimize(snn(), integer_units=True)
    x = torch.ones(2, 24)
    x[1, 5] = torch.nan
    with torch.inference_mode():
        y = fast.two(x)
    assert y[0].isfinite().all() and y[1].isnan().all()


def test_what_has_no_integer_form_is_named() -> None:
    report = optimize_(snn(granularity="channel"), integer_units=True)
    assert set(report.simulated) == {"two", "one"} and report.integer == 0
    assert "0 of 2 weighted products run on 8-bit integers" in str(report) and "one step a channel" in str(
        report
    )
    assert "no VNNI, AMX or AVX2" in str(optimize_(snn(), integer_units=False))
    assert "overflow" in str(optimize_(snn(levels="exponential:12"), integer_units=True))
    assert str(optimize_(snn(), integer_units=True)) == "2 of 2 weighted products run on 8-bit integers"


def test_what_cannot_be_optimised_says_why() -> None:
    with pytest.raises(UsageError, match=r"no neurons\. Convert it first"):
        onespike.optimize(Block())
    with pytest.raises(UsageError, match=r"weights of type torch\.float16\. Use snn\.float\(\)"):
        onespike.optimize(snn().half())
    with pytest.raises(UsageError, match=r"runs on the CPU, not on meta\. Use snn\.cpu\(\)"):
        onespike.optimize(snn().to("meta"))


@pytest.mark.parametrize("integer_units", [True, False])
def test_rounded_weights_are_not_reverted(integer_units):
    network = snn()
    with pytest.raises(UsageError, match="weights are rounded"):
        onespike.revert_(onespike.optimize(network, integer_units=integer_units))
    assert torch.equal(onespike.revert_(network)(X), Block().eval()(X))
