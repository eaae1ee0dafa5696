"""Products that no rule reaches: refused by name and share, listed and charged once excluded."""

from __future__ import annotations

import ast
import re
import threading

import pytest
import torch
from torch import Tensor, nn

import onespike
from contract.conversion_contract import own_forwards, run, same_state, snapshot
from contract.networks import Layers, converted, counted, mlp, rows
from onespike import Recipe, calibrate, convert, convert_, table
from onespike.errors import ConversionError
from onespike.sites import discover, matrix_product


@torch.library.custom_op("onespike_test::product", mutates_args=())
def product(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


def weight() -> nn.Parameter:
    return nn.Parameter(torch.randn(8, 8))


def custom() -> nn.Module:
    return Layers(lambda self, x: product(x, self.weight), weight=weight())


def bilinear() -> nn.Module:
    return Layers(lambda self, x: self.inner(x, x), inner=nn.Bilinear(8, 8, 8))


def recurrent() -> nn.Module:
    return Layers(lambda self, x: self.lstm(x[:, None])[0][:, 0], lstm=nn.LSTM(8, 8, batch_first=True))


def inner() -> nn.Module:
    """torch.inner has no rule; its size is known, since it ends in a matrix product."""
    return Layers(lambda self, x: torch.inner(x, self.weight), weight=weight())


def gated_recurrent() -> nn.Module:
    gru = nn.GRU(8, 8, batch_first=True)
    return Layers(lambda self, x: self.gru(x[:, None].expand(-1, 3, -1))[0][:, -1], gru=gru)


def refusal(model: nn.Module) -> str:
    with pytest.raises(ConversionError) as caught:
        converted(model, rows())
    return str(caught.value)


@pytest.mark.parametrize(
    ("layer", "operation", "share"),
    [(custom, r"onespike_test\.product", "an unknown share"), (inner, r"\w+", f"{100 * 64 / 184:.1f} %")],
)
def test_a_product_is_refused_by_its_name_and_share(layer, operation, share):
    assert re.fullmatch(
        rf"convert: 1 products are not covered: ({operation}) in 4 \({share} of MACs\)\. Add a rule with "
        r"@onespike\.synaptic, or leave them analog with exclude=\['4:\1'\]\.",
        refusal(mlp(layer())),
    )


@pytest.mark.parametrize("layers", [1, 4])
def test_the_remedy_names_every_product(layers):
    """What it says is enough: a GRU has two products."""
    parts = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()]
    model = nn.Sequential(*parts, *(gated_recurrent() for _ in range(layers)), nn.Linear(8, 3))
    text = refusal(model)
    exclude = ast.literal_eval(text.rpartition("exclude=")[2].removesuffix("."))
    assert len(exclude) == 2, text
    assert convert(model, calibrate(model, [rows()]), Recipe(exclude=exclude)) is not None


@pytest.mark.parametrize(("layer", "macs"), [(inner, 64), (bilinear, 512), (recurrent, 4 * 8 * 16)])
def test_the_size_of_an_uncovered_product(layer, macs):
    thresholds = calibrate(mlp(layer()), rows().split(16))
    assert list(thresholds.uncovered.values()) == [macs]
    assert thresholds.macs == 32 + 64 + 24 + macs


@pytest.mark.parametrize(
    ("layer", "owner"), [(bilinear, "4.inner"), (recurrent, "4.lstm"), (inner, "4"), (custom, "4")]
)
def test_uncovered_products_are_refused_until_they_are_excluded(layer, owner):
    torch.manual_seed(0)
    model = mlp(layer())
    before = snapshot(model)
    thresholds = calibrate(model, [rows()])
    assert {name for name, _ in thresholds.uncovered} == {owner}
    with pytest.raises(ConversionError, match=rf" in {re.escape(owner)} \(.* of MACs\)") as caught:
        convert_(model, thresholds)
    assert own_forwards(model) == set() and same_state(model, before)
    remedy = re.search(r"exclude=\['(.*)'\]", str(caught.value)).group(1)
    assert remedy in {f"{o}:{operation}" for o, operation in thresholds.uncovered}
    excluded = tuple(f"{o}:{operation}" for o, operation in thresholds.uncovered)
    snn = convert(model, thresholds, Recipe(exclude=excluded))
    assert not torch.equal(run(snn, rows()), run(model, rows()))
    assert len(calibrate(model, [rows()])) == 3
    analog = {row["site"]: row["neuron"] for row in table(snn) if not row["spikes"]}
    assert all(
        analog[name].startswith("analog: excluded, no rule reaches it")
        for name in analog
        if name.startswith(f"{owner}:")
    )
    assert onespike.verify(snn, rows()).ok
    ledger = counted(snn, rows())
    assert ledger.macs == thresholds.macs * len(rows())
    assert ledger.analog_products >= sum(thresholds.uncovered.values()) * len(rows())


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
        model = mlp(inner())
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
