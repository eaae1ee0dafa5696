"""Products that no rule reaches: refused by name and share, listed and charged once excluded."""

from __future__ import annotations

import ast
import threading

import pytest
import torch
from torch import Tensor, nn

import onespike
from contract.conversion_contract import own_forwards, run, same_state, snapshot
from contract.networks import Layers, converted, counted, mlp, refused, rows
from onespike import Recipe, calibrate, convert, convert_, table
from onespike.errors import ConversionError
from onespike.sites import discover, matrix_product


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
    assert onespike.verify(snn, rows()).ok
    ledger = counted(snn, rows())
    assert ledger.macs == thresholds.macs * len(rows())
    assert ledger.analog_products >= macs * len(rows())


def weighted() -> nn.Module:
    """A linear map whose product is taken element by element and summed up: no matrix product is seen."""
    return Layers(lambda self, x: (x[:, None] * self.weight).sum(-1), weight=weight())


def test_a_weighted_sum_is_listed_and_charged():
    torch.manual_seed(0)
    model = mlp(weighted())
    thresholds = calibrate(model, rows().split(32))
    assert thresholds.uncovered == {("4", "weighted_sum"): 64}
    snn = convert(model, thresholds)
    listed = {row["site"]: row["neuron"] for row in table(snn)}
    assert listed["4:weighted_sum"] == "analog: sums up products taken element by element (64 MACs per input)"
    assert onespike.verify(snn, rows()).ok
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
        assert onespike.verify(convert(model, thresholds), rows()).ok
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
