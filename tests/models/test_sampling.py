"""Sampling at computed positions: analog, and listed with its MACs wherever a network does it."""

from __future__ import annotations

import pytest
import test_detectors as detectors
import torch
from torch import Tensor, nn
from torchvision.ops import DeformConv2d, roi_align

import onespike
from contract.conversion_contract import images, randomize_
from onespike.conversion.network import table

# transformers still decorates some functions with torch's old compiler when its modules are imported
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")


class Deformable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.offsets = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 18, 3, padding=1)
        self.deform, self.last = DeformConv2d(4, 6, 3, padding=1), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        return self.last(self.deform(x, self.offsets(x)).relu())


def test_a_deformable_convolution_is_listed_with_its_macs():
    """Nine samples an input channel and place, of four MACs each, then the weights."""
    model, batches = randomize_(Deformable()), images(8)
    thresholds = onespike.calibrate(model, batches)
    macs = 8 * 8 * 6 * 4 * 9 + 4 * 8 * 8 * 4 * 9
    assert thresholds.uncovered == {("deform", "torchvision.deform_conv2d"): macs}
    snn = onespike.convert(model, thresholds)
    rows = {row["site"]: row["neuron"] for row in table(snn)}
    assert rows["deform:torchvision::deform_conv2d"] == (
        "analog: samples at positions that the network computes, and weighs the samples in the same kernel "
        f"({macs:.4g} MACs per input)"
    )


def test_deformable_sampling_is_in_the_table_and_in_the_ledger():
    """84 tokens of three levels, 2 heads, 2 points a level, 16 channels a head: 4 MACs to sample, 1 to weigh."""
    model, batches = detectors.TestDeformableDetr.build()
    thresholds = onespike.calibrate(model, batches)
    owner = "model.encoder.layers.0.self_attn.attn"
    samples = 84 * 2 * 3 * 2 * 16
    assert thresholds.uncovered[owner, "grid_sampler_2d"] == 4 * samples
    assert thresholds.uncovered[owner, "weighted_sum"] == samples
    snn = onespike.convert(model, thresholds)
    listed = {row["site"]: row["neuron"] for row in table(snn) if not row["spikes"]}
    assert listed[f"{owner}:weighted_sum"].startswith("analog: sums up products taken element by element (")
    with torch.no_grad(), onespike.metered(snn) as ledger:
        snn(**batches[0])
    counted = {row["site"]: row["macs"] for row in ledger.table() if not row["spiking"]}
    assert counted[f"{owner}:grid_sampler_2d"] == 2 * 4 * samples
    assert ledger.macs == thresholds.macs * 2
    assert ledger.analog_products > sum(thresholds.uncovered.values()) * 2


@pytest.mark.parametrize("ratio", [2, 0])
def test_bins_of_a_region_are_means_of_samples(ratio):
    """Without a ratio a bin takes about one sample a pixel: 2 × 1 in the first region, 1 × 1 in the second."""

    class Pool(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            regions = torch.tensor([[0.0, 0.0, 0.0, 8.0, 4.0], [0.0, 2.0, 2.0, 5.0, 5.0]])
            return roi_align(x, regions, output_size=(4, 4), sampling_ratio=ratio)

    trace = onespike.discover(nn.Sequential(nn.Conv2d(3, 5, 1), Pool()), images(8)[0])
    bins = 5 * 4 * 4
    assert trace.uncovered == {("1", "torchvision.roi_align"): 4 * bins * (8 if ratio else 3)}
