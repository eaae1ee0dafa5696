"""Steps by a token's own magnitude, and tails that reach the largest value: in every form that a network takes."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from small_networks import divergence, passed, start, tokens
from torch import Tensor, nn

import onespike
from onespike import convert, kernels, metered
from onespike.conversion.firing import named_neurons
from onespike.deploy.products import integer_form
from onespike.errors import UsageError
from onespike.neurons import ScaleFire
from onespike.passes import chain
from onespike.passes.layout import FARTHEST
from onespike.runs import storage
from onespike.runtime.forward import evaluating
from onespike.spikes.code import COARSEST, FINEST, row_gain

NAMES = ("nearest", "layout", "center", "tokens", "allocate")
LEVELS = tuple(range(1, 40))


def cell(**changes: Tensor) -> ScaleFire:
    generator = torch.Generator().manual_seed(5)
    step, center = torch.rand(6, generator=generator) / 4 + 0.05, torch.randn(6, generator=generator) / 9
    return ScaleFire(step, step, levels=LEVELS, center=center, typical=torch.tensor(0.7), **changes)


def rows(*shape: int, seed: int = 0) -> Tensor:
    """Rows of magnitudes from 2⁻⁴ to 2¹⁶."""
    generator = torch.Generator().manual_seed(seed)
    size = 2.0 ** torch.randint(-4, 17, (*shape, 1), generator=generator)
    return torch.randn(*shape, 6, generator=generator) * size


def massive(width: int = 16) -> tuple[nn.Module, list[Tensor]]:
    """A network some of whose tokens are a thousand times as large as the others."""
    inputs = [batch.clone() for batch in tokens(48)]
    for batch in inputs:
        batch[:, 3] *= 1000
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width),
        nn.LayerNorm(width), nn.Linear(width, 5), nn.Flatten(1), nn.Linear(40, 5),
    )  # fmt: skip
    return model.eval(), inputs


def test_the_gain_is_the_nearest_power_of_two_in_the_logarithm():
    x, typical = rows(500), torch.tensor(0.31)
    size = x.double().abs().mean(-1, keepdim=True)
    exponent = (size / typical.double()).log2().round()
    expected = exponent.exp2().clamp(FINEST, COARSEST)
    assert torch.equal(row_gain(x, typical).double(), expected)
    assert len(row_gain(x, typical).unique()) == 1 + round(math.log2(COARSEST / FINEST))


def test_every_row_is_a_neuron_with_steps_of_its_own():
    neuron, x = cell(), rows(4, 7)
    gain = row_gain(x - neuron.center, neuron.typical)
    fixed = ScaleFire(neuron.positive, neuron.negative, levels=LEVELS, center=neuron.center, gain=gain)
    assert torch.equal(neuron(x), fixed(x)) and torch.equal(neuron.counts(x), fixed.counts(x))
    code = neuron.code()
    assert torch.equal(code.settled(x).decode(code.fire(x)), fixed(x))
    assert torch.equal(neuron.code().coordinate(x), (x - neuron.center) / gain)


def test_rows_do_not_depend_on_their_company():
    """Any batch, any length, any place in the sequence."""
    neuron, x = cell(), rows(5, 11)
    whole = neuron(x)
    assert torch.equal(torch.cat([neuron(part) for part in x.split(2)]), whole)
    assert torch.equal(torch.cat([neuron(part) for part in x.split(3, 1)], 1), whole)
    assert torch.equal(neuron(x.flip(1)).flip(1), whole)
    assert torch.equal(neuron(x[2, 3]), whole[2, 3])


def test_nan_stays_in_its_row():
    neuron, x = cell(), rows(3)
    x[1, 2] = torch.nan
    assert neuron(x).isnan().any(1).tolist() == [False, True, False] and neuron(x)[1, 2].isnan()
    assert torch.equal(neuron(torch.zeros(2, 6))[0], neuron(torch.zeros(1, 6))[0])


def test_gradients_pass_through_rows_of_any_size():
    x = rows(20).requires_grad_()
    cell()(x).sum().backward()
    assert (x.grad == 1).float().mean() > 0.9


def test_the_neuron_refuses_what_it_cannot_do():
    with pytest.raises(UsageError, match=r"code\.settled"):
        cell().decode(torch.ones(2, 6))
    with pytest.raises(UsageError, match="power of two"):
        ScaleFire(0.1, levels=(1,), gain=torch.tensor(3.0))
    with pytest.raises(UsageError, match="a finite number above 0"):
        ScaleFire(0.1, levels=(1,), typical=torch.tensor(0.0))


@pytest.mark.parametrize("path", [None, *kernels.paths()])
def test_integers_are_the_float_network_of_the_same_weights(path, monkeypatch):
    monkeypatch.setattr(kernels, "best_path", lambda: path)
    neuron, x = cell(gain=torch.tensor(2.0)), rows(4, 7)
    weight, bias = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)), torch.ones(5)
    form, rounded = integer_form(neuron, weight, bias)
    value = form(x, neuron)
    assert torch.equal(value, form.plain(x, neuron))
    spikes = neuron(x).double() - neuron.offset  # the offset meets the weight before it is rounded
    expected = spikes @ rounded.double().T + neuron.offset.double() @ weight.double().T + bias
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)


@cache
def converted(energy: str = "counts", names=NAMES):
    model, inputs = massive()
    state, context = start(model, inputs, budget=0.25, energy=energy)
    result = chain(state, context, names)
    return model, inputs, result, result.network(model)


def test_massive_tokens_leave_the_others_their_steps():
    """At equal energy, on a network with outlier tokens."""
    model, inputs, result, _ = converted()
    without = converted(names=tuple(name for name in NAMES if name != "tokens"))[2]
    assert divergence(model, result, inputs) < 0.5 * divergence(model, without, inputs)


@pytest.mark.parametrize("energy", ["counts", "binary"])
def test_passes_ledger_and_storage(energy, tmp_path):
    model, inputs, result, snn = converted(energy)
    with evaluating(snn):
        expected = snn(inputs[0])
        with metered(snn) as ledger:
            assert torch.equal(snn(inputs[0]), expected)
        with metered(snn, onespike.Ledger(every=4)) as sampled:
            assert torch.equal(snn(inputs[0]), expected)
    assert sampled.ratio(energy) == pytest.approx(ledger.ratio(energy), rel=0.2)
    at = [s for s, t in result.thresholds.items() if t.typical is not None]
    assert [str(site) for site in at] == ["2:linear0_input", "4:linear0_input", "6:linear0_input"]
    elements = 16 * 8 * (16 + 16 + 16) + 16 * 8 * (16 + 16 + 5)
    # one addition for each element and one shift for each output
    assert sum(row.measured for row in ledger.sites.values()) == elements
    assert ledger.parts("strict")["rows measured and shifted"] > 0
    storage.save(
        tmp_path / "run", model=model, network={"spec": "x", "weights": "", "attention": None},
        recipe=result.recipe, thresholds=result.thresholds, data={"source": "", "names": [], "sha256": []},
    )  # fmt: skip
    again = convert(model, storage.load(tmp_path / "run").thresholds, result.recipe)
    with evaluating(again):
        assert torch.equal(again(inputs[0]), expected)


def test_compiled_exported_and_on_integers():
    _, inputs, _, snn = converted()
    x = inputs[0]
    with torch.no_grad():
        expected = snn(x)
        program = torch.export.export(snn, (x,)).module()
        compiled = torch.compile(snn, fullgraph=True, backend="aot_eager")
        for form in (program, compiled):
            torch.testing.assert_close(form(x), expected)
        integer = onespike.optimize(snn)
        assert float((integer(x) - expected).square().mean() / expected.var()) < 0.01


def test_attention_of_another_length():
    """No position is fixed: a network that takes any length still does."""
    result, context = passed(NAMES, 32, budget=0.2)
    snn = result.network(context.model)
    with evaluating(snn):
        assert snn(torch.randn(3, 21, 6)).shape == (3, 5)
    cells = {str(s): n for s, n in named_neurons(snn)}
    typical = [cells[site].code().typical for site in ("blocks.0.fc2:linear0_input", "blocks.0:matmul0_lhs")]
    assert typical[0] and not typical[1]


def test_tails_reach_the_largest_value():
    for energy in ("counts", "binary"):
        model, inputs = massive()
        state, context = start(model, inputs, budget=0.1, energy=energy)
        result = chain(state, context, ("nearest", "layout"))
        for site, t in result.spiking.items():
            step = float(t.positive.max()) * result.scale(site)
            assert t.levels[-1] * step >= min(t.largest, FARTHEST * step)
