"""Spikes on binary lanes: the same integers from 0/±1 digits by shift and add."""

from __future__ import annotations

import pytest
import torch
from small_networks import attention, convolutional, start, tokens
from torch import nn

from onespike import metered
from onespike.energy.binary_lanes import digits, fixed_point, naf_weight, prove, shift_and_add
from onespike.errors import ConversionError
from onespike.passes import chain
from onespike.runtime.forward import evaluating


def test_digits_are_the_number_and_never_adjacent():
    number = torch.arange(-2100, 2101)
    lanes = digits(number)
    assert torch.equal(sum(d * 2**k for k, d in enumerate(lanes)), number)
    stacked = torch.stack(lanes)
    assert set(stacked.unique().tolist()) == {-1, 0, 1}
    assert not (stacked[1:] * stacked[:-1]).any()
    assert torch.equal(stacked.abs().sum(0), naf_weight(number.abs()))


def test_shift_and_add_is_the_graded_product():
    generator = torch.Generator().manual_seed(0)
    weight = fixed_point(torch.randn(7, 50, generator=generator))
    counts = torch.randint(-300, 301, (20, 50), generator=generator).double()
    result, sent = shift_and_add(lambda s: s @ weight.T, counts)
    assert torch.equal(result, counts @ weight.T)
    assert torch.equal(result.long(), counts.long() @ weight.long().T)
    assert sent == float(naf_weight(counts.abs()).sum())


@pytest.mark.parametrize("names", [(), ("nearest", "layout", "positions", "center", "allocate")])
@pytest.mark.parametrize("network", ["attention", "convolutional"])
def test_every_product_of_a_network_is_equal_to_the_bit(network, names):
    if network == "attention":
        model, inputs = attention(), tokens(32)
    else:
        model = convolutional()
        inputs = list(torch.randn(16, 2, 4, 4, generator=torch.Generator().manual_seed(0)).split(8))
    budget = {"attention": 0.2, "convolutional": 0.04}[network]  # there, one small layer of three spikes
    state, context = start(model, inputs, energy="binary", budget=budget)
    result = chain(state, context, names) if names else state
    snn = result.network(model)
    proof = prove(snn, inputs[0])
    assert proof.equal, proof.unequal
    with evaluating(snn), metered(snn) as ledger:
        snn(inputs[0])
    driving = [row for row in ledger.products().values() if row.spiking]
    assert proof.graded_spikes == sum(row.spikes for row in driving)
    assert proof.lane_spikes < proof.graded_spikes


def test_a_network_without_neurons_is_refused():
    with pytest.raises(ConversionError, match="Convert it first"):
        prove(nn.Linear(2, 2), torch.zeros(1, 2))
