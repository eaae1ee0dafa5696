"""Sampling at computed positions: analog, and listed with its MACs wherever a network does it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision.ops import DeformConv2d, roi_align

import onespike
from contract.conversion_contract import images, randomize_
from contract.networks import Layers
from onespike.conversion.network import table


def test_a_deformable_convolution_is_listed_with_its_macs():
    """Nine samples an input channel and place, of four MACs each, then the weights."""
    model = Layers(
        lambda self, x: self.last(self.deform(y := self.stem(x).relu(), self.offsets(y)).relu()),
        stem=nn.Conv2d(3, 4, 3, padding=1), offsets=nn.Conv2d(4, 18, 3, padding=1),
        deform=DeformConv2d(4, 6, 3, padding=1), last=nn.Conv2d(6, 2, 1),
    )  # fmt: skip
    model, batches = randomize_(model), images(8)
    thresholds = onespike.calibrate(model, batches)
    macs = 8 * 8 * 6 * 4 * 9 + 4 * 8 * 8 * 4 * 9
    assert thresholds.uncovered == {("deform", "torchvision.deform_conv2d"): macs}
    snn = onespike.convert(model, thresholds)
    rows = {row["site"]: row["neuron"] for row in table(snn)}
    assert rows["deform:torchvision::deform_conv2d"] == (
        "analog: samples at positions that the network computes, and weighs the samples in the same kernel "
        f"({macs:.4g} MACs per input)"
    )


def test_a_sample_of_a_grid_weighs_four_neighbors():
    sample = Layers(
        lambda self, x: nn.functional.grid_sample(x, torch.zeros(len(x), 6, 7, 2), align_corners=False)
    )
    trace = onespike.discover(nn.Sequential(nn.Conv2d(3, 5, 1), sample), images(8)[0])
    assert trace.uncovered == {("1", "grid_sampler_2d"): 2 * 4 * 5 * 6 * 7}  # of two images


@pytest.mark.parametrize("ratio", [2, 0])
def test_bins_of_a_region_are_means_of_samples(ratio):
    """Without a ratio a bin takes about one sample a pixel: 2 × 1 in the first region, 1 × 1 in the second."""

    regions = torch.tensor([[0.0, 0.0, 0.0, 8.0, 4.0], [0.0, 2.0, 2.0, 5.0, 5.0]])
    pool = Layers(lambda self, x: roi_align(x, regions, output_size=(4, 4), sampling_ratio=ratio))
    trace = onespike.discover(nn.Sequential(nn.Conv2d(3, 5, 1), pool), images(8)[0])
    bins = 5 * 4 * 4
    assert trace.uncovered == {("1", "torchvision.roi_align"): 4 * bins * (8 if ratio else 3)}
