"""Several timesteps: the network of running means against spike trains written out step by step."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onespike
from contract.networks import Layers, converted, counted, mlp, rows, sequences, transformer
from onespike import NEURONS, Recipe, calibrate, metered, preset, revert_
from onespike.conversion.firing import named_neurons
from onespike.conversion.network import steps_of
from onespike.conversion.timesteps import Clock
from onespike.errors import UsageError
from onespike.neurons import Neuron, ScaleFire
from onespike.neurons.baselines import IntegrateFire
from onespike.sites import Site

LEVELS = (1, 2, 3, 5, 9)
SITE = Site("", "linear", 0, "input")


def over_time(neuron: Neuron, means: Tensor) -> list[tuple[Tensor, Tensor]]:
    """What a neuron fires and passes on in each step, of the running means of its input."""
    clock, seen = Clock(len(means)), []
    clock.run(lambda: seen.append(clock.fire(SITE, neuron, means[clock.now - 1])))
    return seen


@pytest.mark.parametrize("name", sorted(NEURONS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_first_step_is_the_one_step_neuron(name, dtype):
    """Bit for bit, and in the type of the input."""
    torch.manual_seed(0)
    kind = NEURONS[name]
    neuron = kind(0.4, 0.3 if kind.two_sided else 0.0, levels=LEVELS)
    x = torch.randn(500).to(dtype)
    fired, value = Clock(3).fire(SITE, neuron, x)
    assert torch.equal(fired, neuron.counts(x))
    assert value.dtype == dtype
    assert torch.equal(value, neuron(x))


def by_hand(currents: Tensor, step: float, levels: tuple[int, ...]) -> tuple[list[float], list[float]]:
    """A scale-and-fire neuron over T steps, one value at a time: counts, and the running mean of the output."""
    v, total, counts, means = 0.0, 0.0, [], []
    for t, x in enumerate(currents.tolist(), 1):
        h = v + x
        size = max((y for y in levels if abs(h) / step + 0.5 >= y), default=0)
        y = size if h >= 0 else -size
        v, total = h - step * y, total + step * y
        counts.append(y)
        means.append(total / t)
    return counts, means


def test_scale_fire_over_time_against_its_definition():
    torch.manual_seed(1)
    currents = torch.randn(6, 40).double()
    means = currents.cumsum(0) / torch.arange(1, 7)[:, None]
    seen = over_time(ScaleFire(0.3, 0.3, levels=LEVELS), means.float())
    for i in range(40):
        counts, outputs = by_hand(currents[:, i], 0.3, LEVELS)
        assert [float(fired[i]) for fired, _ in seen] == counts
        assert [float(value[i]) for _, value in seen] == pytest.approx(outputs, abs=1e-5)


def test_a_one_sided_neuron_can_take_back_what_it_sent():
    """The mean falls from 1 to ¼: the current of the second step is negative, and so is its spike."""
    seen = over_time(ScaleFire(0.5, 0.0, levels=(1, 2, 3, 4)), torch.tensor([[1.0], [0.25]]))
    assert [(float(fired), float(value)) for fired, value in seen] == [(2.0, 1.0), (-1.0, 0.25)]


def spike_train(network: nn.Sequential, thresholds: list[float], x: Tensor, steps: int) -> Tensor:
    """Rate coding as everyone writes it: in each step the currents of all layers, spikes of 0 or θ, soft reset."""
    layers = [m for m in network if isinstance(m, nn.Linear)]
    potentials: list[Tensor | float] = [theta / 2 for theta in thresholds]
    total = torch.zeros(())
    for _ in range(steps):
        current = layers[0](x)
        for i, layer in enumerate(layers[1:]):
            h = potentials[i] + current
            spike = thresholds[i] * (h >= thresholds[i]).double()
            potentials[i] = h - spike
            current = layer(spike)
        total = total + current
    return total / steps


def test_integrate_and_fire_is_rate_coding():
    """Neurons in place of ReLUs on running means give the outputs of the spike train."""
    torch.manual_seed(2)
    network = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 4))
    x = torch.randn(32, 6)
    for steps in (1, 2, 7, 16):
        snn = converted(network, x, preset("if", steps=steps, placement="activation"))
        cells = [n for _, n in named_neurons(snn) if isinstance(n, IntegrateFire)]
        assert len(cells) == 2
        thetas = [float(cell.positive) for cell in cells]
        assert thetas == [float(network[:k](x).detach().max()) for k in (2, 4)]
        expected = spike_train(copy.deepcopy(network).double(), thetas, x.double(), steps)
        torch.testing.assert_close(snn(x).double(), expected, atol=1e-4, rtol=1e-4)


def test_a_dual_neuron_spends_its_branches_apart():
    means = torch.tensor([1.0, -3.0, 1.0]).cumsum(0) / torch.arange(1, 4)
    seen = over_time(NEURONS["dual-if"](1.0, 2.0, levels=(1,)), means[:, None])
    # positive branch: 1, 0, 1 with θ 1; negative branch: 3 in the second step with θ 2, and 1 left over
    assert [float(fired) for fired, _ in seen] == [1.0, -1.0, 2.0]
    assert [float(value) for _, value in seen] == pytest.approx([1.0, -0.5, -2 / 3])


@pytest.mark.parametrize("name", ["sformer", "ecmt", "if"])
def test_more_steps_come_closer(name):
    network, x, errors = transformer(), sequences(8), []
    for steps in (1, 4, 16, 64):
        snn = converted(network, x, preset(name, steps=steps, fixed=(), softmax="site"))
        with torch.inference_mode():
            errors.append(float((snn(x) - network(x)).abs().mean()))
    assert errors == sorted(errors, reverse=True) and errors[3] < 0.2 * errors[0]


def test_state_does_not_outlive_a_forward():
    x = rows(16)
    snn = converted(mlp(), x, Recipe(steps=3))
    first = snn(x)
    snn(rows(5) * 3)
    assert torch.equal(snn(x), first)
    with pytest.raises(RuntimeError):
        snn(torch.zeros(2, 1))
    assert torch.equal(snn(x), first)
    assert torch.equal(copy.deepcopy(snn)(x), first)


def test_reverting_gives_the_network_back():
    network, x, recipe = mlp(), rows(16), Recipe(steps=2)
    before = network(x)
    onespike.convert_(network, calibrate(network, [x], recipe), recipe)
    assert steps_of(network) == 2
    assert not torch.equal(network(x), before)
    revert_(network)
    assert "forward" not in network.__dict__
    assert torch.equal(network(x), before)


def test_a_layer_that_runs_twice_has_two_membranes():
    torch.manual_seed(3)
    network, x = Layers(
        lambda self, x: self.last(self.again(self.again(self.first(x)).relu()).relu()),
        first=nn.Linear(6, 6), again=nn.Linear(6, 6), last=nn.Linear(6, 3),
    ), torch.randn(64, 6)  # fmt: skip
    snn = converted(network, x, Recipe(steps=64))
    one = converted(network, x)
    with torch.inference_mode():
        many, single = ((network(x) - converted(x)).abs().mean() for converted in (snn, one))
    assert float(many) < 0.1 * float(single)


def test_energy_over_time_against_unit_weights():
    """The first step as ever; afterwards both operands drive; the network itself counts once."""
    torch.manual_seed(4)
    network, x = Layers(
        lambda self, x: self.out((self.a(x).view(-1, 3, 4) @ self.b(x).view(-1, 4, 3)).flatten(1)),
        a=nn.Linear(4, 12), b=nn.Linear(4, 12), out=nn.Linear(9, 2),
    ), torch.randn(32, 4)  # fmt: skip
    snn = converted(network, x, preset("ecmt", steps=3))
    steps: list[dict[str, Tensor]] = [{} for _ in range(3)]
    fire = Clock.fire

    def spy(clock: Clock, site: Site, neuron: Neuron, x: Tensor) -> tuple[Tensor, Tensor]:
        fired, value = fire(clock, site, neuron, x)
        steps[clock.now - 1][site.key] = fired.detach().double()
        return fired, value

    with pytest.MonkeyPatch.context() as patch, metered(snn) as ledger:
        patch.setattr(Clock, "fire", spy)
        snn(x)
    assert ledger.macs == 32 * (4 * 12 * 2 + 3 * 4 * 3 + 9 * 2)
    a, b = ([s[f"matmul0_{side}"] for s in steps] for side in ("lhs", "rhs"))
    ones = torch.ones(32, 4, 3).double()
    driven = sum(float((y.abs() @ ones).sum()) for y in a)
    driven += sum(float((torch.ones(32, 3, 4).double() @ y.abs()).sum()) for y in b[1:])
    assert ledger.accumulates("counts") == driven
    nonzero = [(y != 0).double() for y in a], [(y != 0).double() for y in b]
    pairs = 0.0
    for t in range(3):
        now = nonzero[0][t], nonzero[1][t]
        pairs += float((now[0] @ now[1]).sum())
        if t:
            before_a = _sums(snn, "matmul0_lhs", a[:t])
            before_b = _sums(snn, "matmul0_rhs", b[:t])
            pairs += float((now[0] @ before_b).sum()) + float((before_a @ now[1]).sum())
    assert ledger.accumulates("nonzero", double=True) == pairs
    for column in ("counts", "binary"):
        with pytest.raises(UsageError, match="counted for one timestep"):
            ledger.accumulates(column, double=True)


def _sums(snn: nn.Module, key: str, counts: list[Tensor]) -> Tensor:
    """Where the spikes so far do not cancel."""
    neuron = next(n for site, n in named_neurons(snn) if site.key == key)
    assert isinstance(neuron, Neuron)
    return (sum(neuron.decode(y) for y in counts).abs() > 1e-5).double()


def test_relu_sites_of_every_spelling():
    """Functions, methods and in-place forms: each is replaced, and the shortcut sees the neuron's output."""

    def spelled(self: Layers, x: Tensor) -> Tensor:
        a, b, c, d, e, last = self.layers
        x = F.relu(a(x))
        x = x + torch.relu(b(x))
        x = x + c(x).relu()
        y = d(x)
        torch.relu_(y)
        y = y + F.relu(e(y), inplace=True)
        return last(y)

    torch.manual_seed(6)
    network, x = Layers(spelled, layers=nn.ModuleList(nn.Linear(5, 5) for _ in range(6))), torch.randn(256, 5)
    recipe = preset("mtn", placement="activation", levels="linear:512")
    snn = converted(network, x, recipe)
    spiking = [str(site) for site, n in named_neurons(snn) if isinstance(n, Neuron)]
    assert spiking == [":relu0_input", ":relu1_input", ":relu2_input", ":relu3_input", ":relu4_input"]
    torch.testing.assert_close(snn(x), network(x), atol=0.02, rtol=0.02)
    assert not torch.equal(snn(x), network(x))
    ledger = counted(snn, x)
    assert ledger.ratio("counts") != ledger.ratio("counts")  # NaN: no product receives plain counts
    with pytest.raises(onespike.errors.CalibrationError, match="this network has none"):
        calibrate(nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2)), [torch.randn(4, 2)], recipe)
