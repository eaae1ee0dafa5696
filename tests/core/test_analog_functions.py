"""What stays analog is charged in the strict columns: products, functions, and what is written out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from contract.networks import converted, counted, mlp, rows, sequences, transformer
from onespike import Ledger, Recipe
from onespike.energy.analog_functions import AnalogFunctions


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
    "gelu, tanh": (nn.GELU("tanh"), "activation", 1),
    "silu": (nn.SiLU(), "activation", 1),
    "sigmoid": (nn.Sigmoid(), "activation", 1),
    "tanh": (nn.Tanh(), "activation", 1),
    "hardswish": (nn.Hardswish(), "activation", 1),
    "glu": (nn.Sequential(nn.Linear(8, 16), nn.GLU()), "activation", 2),
    "relu": (nn.ReLU(), None, 0),
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
