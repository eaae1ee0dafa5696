"""Spikes on binary lanes: the same integers from 0/±1 digits by shift and add."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from onespike.energy.binary_lanes import digits, naf_weight


def test_digits_are_the_number_and_never_adjacent():
    number = torch.arange(-2100, 2101)
    lanes = digits(number)
    assert torch.equal(sum(d * 2**k for k, d in enumerate(lanes)), number)
    stacked = torch.stack(lanes)
    assert set(stacked.unique().tolist()) == {-1, 0, 1}
    assert not (stacked[1:] * stacked[:-1]).any()
    assert torch.equal(stacked.abs().sum(0), naf_weight(number).long())


def test_products_of_lanes_are_the_product_of_the_spikes():
    spikes = torch.randint(-263, 264, (2, 4, 6, 6), generator=torch.Generator().manual_seed(0)).double()
    weight = torch.randint(-127, 128, (6, 2, 3, 3), generator=torch.Generator().manual_seed(1)).double()
    shifted = [2**k * F.conv2d(d.double(), weight, groups=2) for k, d in enumerate(digits(spikes))]
    assert torch.equal(sum(shifted), F.conv2d(spikes, weight, groups=2))
