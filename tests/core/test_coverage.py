"""Products that no rule reaches, and neurons that nothing reaches: refused or found, and named."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onespike
from contract.conversion_contract import own_forwards, run, same_state, snapshot
from contract.networks import Layers, converted, counted, mlp, refused, rows, sequences, transformer
from onespike import Recipe, calibrate, convert, convert_, table, verify
from onespike.errors import ConversionError
from onespike.sites import Places, discover, matrix_product


@torch.library.custom_op("onespike_test::product", mutates_args=())
def product(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


def weight() -> nn.Parameter:
    return nn.Parameter(torch.randn(8, 8))


UNCOVERED = {
    "custom": lambda: Layers(lambda self, x: product(x, self.weight), weight=weight()),
    "bilinear": lambda: Layers(lambda self, x: self.inner(x, x), inner=nn.Bilinear(8, 8, 8)),
    "recurrent": lambda: Layers(lambda self, x: self.lstm(x[:, None])[0][:, 0], lstm=nn.LSTM(8, 8, batch_first=True)),
    # torch.inner has no rule; its size is known, since it ends in a matrix product
    "inner": lambda: Layers(lambda self, x: torch.inner(x, self.weight), weight=weight()),
    "gated": lambda: Layers(lambda self, x: self.gru(x[None].expand(3, -1, -1))[0][-1], gru=nn.GRU(8, 8)),
}  # fmt: skip


@pytest.mark.parametrize("layers", [1, 4])
def test_the_remedy_names_every_product(layers):
    """What it says is enough: a GRU has two products."""
    model = mlp(*(UNCOVERED["gated"]() for _ in range(layers)))
    with pytest.raises(ConversionError) as caught:
        converted(model, rows())
    text = str(caught.value)
    exclude = ast.literal_eval(text.rpartition("exclude=")[2].removesuffix("."))
    assert len(exclude) == 2, text
    assert convert(model, calibrate(model, [rows()]), Recipe(exclude=exclude)) is not None


@pytest.mark.parametrize(
    ("layer", "owner", "macs"),
    [
        ("bilinear", "4.inner", 512),
        ("recurrent", "4.lstm", 4 * 8 * 16),
        ("inner", "4", 64),
        ("custom", "4", 0),
    ],
)
def test_uncovered_products_are_refused_until_they_are_excluded(layer, owner, macs):
    torch.manual_seed(0)
    model = mlp(UNCOVERED[layer]())
    before = snapshot(model)
    thresholds = calibrate(model, rows().split(32))
    [(name, operation)] = thresholds.uncovered
    assert (name, thresholds.uncovered[name, operation]) == (owner, macs)
    assert len(thresholds) == 3 and thresholds.macs == 32 + 64 + 24 + macs
    site, share = (
        f"{owner}:{operation}",
        f"{100 * macs / thresholds.macs:.1f} %" if macs else "an unknown share",
    )
    message = (
        f"convert: 1 products are not covered: {operation} in {owner} ({share} of MACs). Add a rule with "
        f"@onespike.synaptic, or leave them analog with exclude=['{site}']."
    )
    with refused(ConversionError, message):
        convert_(model, thresholds)
    assert own_forwards(model) == set() and same_state(model, before)
    snn = convert(model, thresholds, Recipe(exclude=(site,)))
    assert not torch.equal(run(snn, rows()), run(model, rows()))
    listed = [row["neuron"] for row in table(snn) if row["site"].startswith(f"{owner}:")]
    assert [text.startswith("analog: excluded, no rule reaches it") for text in listed] == [True]
    assert verify(snn, rows()).ok
    ledger = counted(snn, rows())
    assert ledger.macs == thresholds.macs * len(rows())
    assert ledger.analog_products >= macs * len(rows())


def test_a_weighted_sum_is_listed_and_charged():
    torch.manual_seed(0)
    # no matrix product is seen
    model = mlp(Layers(lambda self, x: (x[:, None] * self.weight).sum(-1), weight=weight()))
    thresholds = calibrate(model, rows().split(32))
    assert thresholds.uncovered == {("4", "weighted_sum"): 64}
    snn = convert(model, thresholds)
    listed = {row["site"]: row["neuron"] for row in table(snn)}
    assert listed["4:weighted_sum"] == "analog: sums up products taken element by element (64 MACs per input)"
    assert verify(snn, rows()).ok
    ledger = counted(snn, rows())
    assert ledger.table()[-1]["macs"] == 64 * len(rows())
    over_time = counted(convert(model, thresholds, Recipe(steps=3)), rows())
    assert ledger.macs == over_time.macs == thresholds.macs * len(rows())  # once, whatever the steps


def test_norms_and_gates_are_no_weighted_sums():
    """Squares and factors without a sum are no products of two activations."""
    scaled = Layers(lambda self, x: x * (x * x).sum(-1, keepdim=True).rsqrt() * x.sigmoid())
    assert calibrate(mlp(scaled), rows().split(32)).uncovered == {}


def test_a_rule_makes_it_pass():
    @onespike.synaptic(torch.inner)
    def rule(visit, input, other):
        product = matrix_product(input, other.T)
        return torch.matmul(visit(product, "lhs"), visit(product, "rhs"))

    try:
        model = mlp(UNCOVERED["inner"]())
        thresholds = calibrate(model, rows().split(32))
        assert thresholds.uncovered == {}
        assert thresholds["4:matmul0_rhs"].role == "weight"
        assert verify(convert(model, thresholds), rows()).ok
    finally:
        del onespike.sites.rules.RULES[torch.inner]


def test_modules_that_another_thread_calls_are_none_of_the_network():
    """The images of the next batch are prepared while this one runs, and torchvision's transforms are modules."""
    entered, leave = threading.Event(), threading.Event()

    class Foreign(nn.Module):
        def forward(self) -> None:
            entered.set()
            leave.wait(60)

    class Inner(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            leave.set()  # the other thread leaves its module while this one is running
            thread.join(60)
            return super().forward(x)

    def outer(self: Layers, x: Tensor) -> Tensor:
        thread.start()
        entered.wait(60)
        return self.inner(x)

    thread = threading.Thread(target=Foreign())
    trace = discover(Layers(outer, inner=Inner(4, 2)), torch.randn(3, 4))
    assert {site.owner for site in trace.sites} == {"inner"}


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
