"""Silent, dead and saturated neurons, and products outside every rule, are found and named."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contract.conversion_contract import run
from contract.networks import Layers, converted, mlp, refused, rows, sequences, transformer
from onespike import Recipe, calibrate, convert, verify
from onespike.errors import ConversionError
from onespike.sites import Places


def test_a_sound_network():
    x = sequences()
    snn = converted(transformer(), x)
    before = run(snn, x)
    found = verify(snn, x)
    assert found.ok and found.uncovered == ()
    assert str(found).splitlines()[:3] == ["8 of 8 neurons reached", "silent: none", "dead: none"]
    assert torch.equal(run(snn, x), before)
    assert all(m.visitor is None for m in snn.modules() if isinstance(m, Places))


def test_a_network_without_neurons():
    with refused(ConversionError, "verify: this network has no neurons. Convert it first."):
        verify(mlp(), rows())


def skips(self: Layers, x: Tensor) -> Tensor:
    """Leaves a layer out where the batch is small."""
    h = self.stem(x).relu()
    h = self.rare(h).relu() if len(x) > 8 else h
    return self.head(self.often(h))


@pytest.mark.compiles
@pytest.mark.parametrize("compiled", [False, True])
def test_silent_neurons_are_named(compiled):
    layers = {"stem": nn.Linear(4, 8), "rare": nn.Linear(8, 8), "often": nn.Linear(8, 8)}
    model = Layers(skips, **layers, head=nn.Linear(8, 2))
    snn = convert(model, calibrate(model, [rows(16), rows(32, 2)]))
    settings = dict(compiled=compiled, backend="eager")
    torch._dynamo.reset()
    assert verify(snn, rows(16), **settings).ok
    found = verify(snn, rows(4), **settings)
    assert not found.ok
    assert found.silent == ("rare:linear0_input",)
    assert found.reached == ("often:linear0_input",)
    assert "silent: rare:linear0_input" in str(found)
    assert "1 of 2 neurons reached" in str(found)


@pytest.mark.compiles
def test_a_neuron_that_only_the_compiled_network_skips():
    """It takes another path under the compiler, as fused kernels do."""

    def forward(self: Layers, x: Tensor) -> Tensor:
        h = self.stem(x)
        return self.head(h if torch.compiler.is_compiling() else self.middle(h))

    model = Layers(forward, stem=nn.Linear(4, 8), middle=nn.Linear(8, 8), head=nn.Linear(8, 2))
    snn = convert(model, calibrate(model, rows().split(32)))
    torch._dynamo.reset()
    assert verify(snn, rows()).ok
    found = verify(snn, rows(), compiled=True, backend="eager")
    assert found.silent == ("middle:linear0_input",)
    assert not any("ticks" in name for name, _ in snn.named_buffers())


def test_dead_neurons():
    snn = converted(mlp(), rows())
    found = verify(snn, 1e-6 * rows())
    assert found.dead == ()  # the bias alone makes it fire
    with torch.no_grad():
        snn[0].bias.fill_(-100.0)
    found = verify(snn, rows())
    assert found.dead == ("2:linear0_input",)
    assert found.ok  # it was reached: a fact worth knowing, not a failure


def test_saturated_neurons_and_their_share():
    snn = converted(mlp(), rows(), Recipe(levels="mixed:2", scale=1.0))
    assert verify(snn, rows()).saturated == {}
    with torch.no_grad():
        snn[0].bias.fill_(1e6)
    found = verify(snn, rows())
    assert found.saturated == {"2:linear0_input": 1.0}
    assert "saturated: 2:linear0_input (100.0 %)" in str(found)


def opaque(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """As an extension would call it."""

    def call(*operands: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            return function(*operands)

    return call


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (torch.inner, "mm"),
        (opaque(F.linear), "mm"),
        (opaque(lambda x, _: F.scaled_dot_product_attention(x[None], x[None], x[None])[0]), "flash|bmm|mm"),
    ],
)
def test_products_outside_every_rule(kernel, name):
    model = Layers(
        lambda self, x: self.head(self.late(self.middle(self.stem(x)), self.middle.weight)),
        stem=nn.Linear(4, 8), middle=nn.Linear(8, 8), head=nn.Linear(8, 2), late=lambda x, weight: x,
    )  # fmt: skip
    snn = convert(model, calibrate(model, rows().split(32)))
    assert verify(snn, rows()).ok
    snn.late = kernel
    found = verify(snn, rows())
    assert not found.ok
    assert len(found.uncovered) >= 1
    for text in found.uncovered:
        assert re.match(rf":.*({name})", text), text
    assert found.silent == ()
