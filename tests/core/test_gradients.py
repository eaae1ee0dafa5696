"""Gradients pass straight through neurons that do not clip, in every form of a network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import onespike
from contract.networks import Attention, converted, nine, sequences, transformer
from onespike import Recipe


def gradient(model: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(model(x).square().sum(), x)
    return found


def alike(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a.flatten(), b.flatten(), 0))


FINE = {"scale": 0.01, "levels": "linear:1000"}
"""Steps so fine that the spiking network is nearly the original, and so must its gradient be."""


@pytest.mark.parametrize(
    "changes",
    [FINE, {**FINE, "io": "spiking"}, {"neuron": "mtn", "levels": "linear:500", "percentile": 0.0},
     {"neuron": "if", "levels": "1,", "steps": 40, "percentile": 0.0, "scale": 1.0}],
)  # fmt: skip
def test_gradients_of_a_converted_network_are_nearly_the_original_s(changes):
    model, x, recipe = transformer(), sequences(), Recipe(**changes)
    snn = converted(model, x, recipe)
    expected, found = gradient(model, x), gradient(snn, x)
    assert alike(found, expected) > (0.9 if recipe.steps > 1 else 0.99)
    if recipe.steps == 1:
        with onespike.metered(snn):
            assert torch.equal(gradient(snn, x), found)
    snn(x).sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in snn.parameters())


@pytest.mark.compiles
def test_gradients_of_passes_integers_and_compiled_networks():
    model, x = Attention().eval(), nine()
    centered = onespike.spike(model, [x], "sformer", passes=("center",), **FINE)
    assert alike(gradient(centered, x), gradient(model, x)) > 0.99
    snn = onespike.spike(model, [x], "sformer", scale=0.1)
    optimized = onespike.optimize(snn)
    assert alike(gradient(optimized, x), gradient(snn, x)) > 0.99
    compiled = torch.compile(snn, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradient(compiled, x), gradient(snn, x))


@pytest.mark.compiles
def test_an_exported_program_holds_nothing_for_gradients():
    x = nine()
    snn, programs = converted(Attention().eval(), x), []
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            programs.append([str(node.target) for node in torch.export.export(snn, (x,)).graph.nodes])
    assert programs[0] == programs[1]
