"""Strict columns: the plain column and what it leaves out, pairs of spikes and all that stays analog, however a network is written."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from contract.networks import Layers, converted, counted, mlp, rows, sequences, transformer
from onespike import Ledger, Recipe
from onespike.energy.analog_functions import AnalogFunctions

WIDTH, TOKENS = 8, 6
PRODUCTS = {
    "matmul": torch.matmul,
    "@": lambda a, b: a @ b,
    "bmm": torch.bmm,
    "baddbmm": lambda a, b: torch.baddbmm(torch.zeros(1), a, b),
    "einsum": lambda a, b: torch.einsum("bik,bkj->bij", a, b),
    "einsum, ellipsis": lambda a, b: torch.einsum("...ik,...kj", a, b),
    "linear": lambda a, b: F.linear(a, b[0].mT),
    "conv": lambda a, b: F.conv1d(a.mT, b[0].mT[..., None]).mT,
}  # fmt: skip


def written_out(scores: Tensor) -> Tensor:
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def attention(self: Layers, x: Tensor) -> Tensor:
    """One head; its two products, or both and the softmax, as one writes them."""
    q, k, v = self.qkv(self.stem(x)).chunk(3, -1)
    if self.fused:
        return self.head(F.scaled_dot_product_attention(q, k, v, scale=1.0).mean(1))
    return self.head(self.product(self.softmax(self.product(q, k.mT)), v).mean(1))


def ledger_of(model: nn.Module, x: Tensor, recipe: Recipe | None = None) -> Ledger:
    return counted(converted(model, x, recipe), x)


def network(softmax=lambda x: x.softmax(-1), fused: bool = False) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layers = {"stem": nn.Linear(4, WIDTH), "qkv": nn.Linear(WIDTH, 3 * WIDTH), "head": nn.Linear(WIDTH, 3)}
    model = Layers(attention, **layers, product=torch.matmul, softmax=softmax, fused=fused)
    return model.eval(), torch.randn(5, TOKENS, 4)


@pytest.mark.parametrize("name", list(PRODUCTS)[1:])
def test_pairs_are_those_of_the_product_not_of_the_function(name):
    # a softmax site is an operand of matmul or einsum
    model, x = network(softmax=torch.tanh if name in ("linear", "conv") else nn.Softmax(-1))
    expected = ledger_of(model, x[:1])
    model.product = PRODUCTS[name]
    ledger = ledger_of(model, x[:1])
    assert "pairs of spikes" in expected.parts("strict")
    assert ledger.ratios() == pytest.approx(expected.ratios(), rel=1e-12)
    assert ledger.ratio("nonzero", double=True) == pytest.approx(expected.ratio("nonzero", double=True))


def test_vectors_have_pairs_too():
    def dots(self: Layers, x: Tensor) -> Tensor:
        pairs = zip(self.a(x), self.b(x), strict=True)
        return self.out(torch.stack([torch.dot(a, b) for a, b in pairs])[:, None])

    model = Layers(dots, a=nn.Linear(4, 8), b=nn.Linear(4, 8), out=nn.Linear(1, 2))
    ledger = ledger_of(model, torch.randn(3, 4))
    assert any("counts" in row.pairs for row in ledger.sites.values())


NETWORKS = {"mlp": (mlp, rows), "transformer": (transformer, sequences), "attention": (network, None)}


@settings(max_examples=40, deadline=None)
@given(
    levels=st.sampled_from(["mixed:8", "mixed:2", "exponential:8", "exponential:3", "linear:8", "linear:1"]),
    scale=st.floats(0.02, 1.0),
    name=st.sampled_from(list(NETWORKS)),
)
def test_no_strict_column_is_below_its_plain_one(levels, scale, name):
    make, inputs = NETWORKS[name]
    model, x = make() if inputs is None else (make(), inputs())
    ledger = ledger_of(model, x, Recipe(levels=levels, scale=scale))
    for strict, plain in (("strict", "counts"), ("strict-binary", "binary")):
        for suffix in ("", "-int8"):
            parts, rest = ledger.parts(plain + suffix), ledger.parts(strict + suffix)
            assert all(rest.pop(item) == part for item, part in parts.items())  # the plain column, literally
            assert all(part > 0 for part in rest.values())
            assert ledger.ratio(strict + suffix) >= ledger.ratio(plain + suffix)


SOFTMAX = {
    "written out": (written_out, 2),
    "function": (lambda x: F.softmax(x, -1), 2),
    "torch": (lambda x: torch.softmax(x, -1), 2),
    "module": (nn.Softmax(-1), 2),
    "exponential of its logarithm": (lambda x: F.log_softmax(x, -1).exp(), 3),
}


@pytest.mark.parametrize("name", SOFTMAX)
def test_a_softmax_is_charged_once_however_it_is_written(name):
    softmax, each = SOFTMAX[name]
    ledger, fused = ledger_of(*network(softmax=softmax)), ledger_of(*network(fused=True))
    assert fused.functions == {"softmax": 2 * 5 * TOKENS**2}
    assert sum(ledger.functions.values()) == each * 5 * TOKENS**2


def test_strict_charges_products_that_were_excluded():
    model, x = transformer(), sequences()
    ledger = counted(converted(model, x, Recipe(exclude=("fc1:*", ":matmul0*"))), x)
    whole = counted(converted(model, x), x)
    b, n, c, h = len(x), x.shape[1], 16, 32
    assert ledger.macs == whole.macs
    assert ledger.analog_products - whole.analog_products == b * n * c * h + b * n * n * c


FUNCTIONS = {
    "layer_norm": (nn.LayerNorm(8), "norm", 2),
    "rms_norm": (nn.RMSNorm(8), "norm", 2),
    "batch_norm": (nn.BatchNorm1d(8), "norm", 1),
    "gelu": (nn.GELU(), "activation", 1),
    "softmax": (nn.Softmax(-1), "softmax", 2),  # which enters no product
    "glu": (nn.Sequential(nn.Linear(8, 16), nn.GLU()), "activation", 2),
    "dropout": (nn.Dropout(), None, 0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_strict_charges_analog_functions_once(name):
    layer, kind, macs = FUNCTIONS[name]
    ledger = counted(converted(mlp(layer.eval()), rows()), rows())
    assert ledger.functions == ({kind: macs * 64 * 8} if kind else {})


COMPARING = ["ReLU", "ReLU6", "Hardtanh", "Threshold", "Hardshrink", "Softshrink"]
"""They compare, and add at most: free in both networks."""
SPECIAL = ["MultiheadAttention", "GLU", "RReLU", "Softmin", "Softmax", "Softmax2d", "LogSoftmax", *COMPARING]


def test_every_activation_of_torch_that_computes_is_charged():
    names = [name for name in nn.modules.activation.__all__ if name not in SPECIAL]
    assert len(names) > 15
    for name in [*names, "ReLU", "ReLU6", "Hardtanh"]:
        with AnalogFunctions(ledger := Ledger()):
            getattr(nn, name)()(torch.randn(4, 8))
        assert ledger.functions == ({} if name in COMPARING else {"activation": 32}), name


@pytest.mark.parametrize(
    ("function", "number"),
    [
        (lambda x: x * x.square(), 64), (lambda x: x / x.exp(), 64), (lambda x: 2 * x / 3, 0),
        (lambda x: torch.layer_norm(x, (8,)), 64), (lambda x: x.clone().sigmoid_(), 32), (lambda x: x**2, 32),
    ],
)  # fmt: skip
def test_what_is_written_out_is_charged_too(function, number):
    with AnalogFunctions(ledger := Ledger()):
        function(torch.randn(4, 8))
    assert sum(ledger.functions.values()) == number
