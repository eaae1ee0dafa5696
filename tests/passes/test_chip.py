"""The preset `chip`: small levels, one side behind ReLUs, and constants only where they are a bias."""

from __future__ import annotations

import pytest
import torch
from small_networks import attention, convolutional, tokens
from torch import nn

import onespike
from onespike import preset
from onespike.calibration.thresholds import is_bias
from onespike.conversion.firing import is_spiking, named_neurons
from onespike.errors import UsageError
from onespike.sites import Site

PICTURES = list(torch.randn(48, 2, 4, 4, generator=torch.Generator().manual_seed(2)).split(16))


def codes(snn: nn.Module) -> dict[Site, onespike.spikes.SpikeCode]:
    return {site: place.code() for site, place in named_neurons(snn) if is_spiking(place)}


@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("energy", ["counts", "binary"])
def test_no_level_needs_more_bits_than_its_payload(bits, energy):
    snn = onespike.spike(attention(), tokens(), "chip", payload_bits=bits, budget=0.3, energy=energy)
    every = codes(snn).values()
    assert {code.largest for code in every} == {2**bits - 1} or bits == 8
    assert all(code.largest < 2**bits and (code.compared or bits == 8) for code in every)
    assert all(code.shifted for code in every)


def test_behind_relus_one_side_fires_and_padding_has_no_constants():
    snn = onespike.spike(convolutional(), PICTURES, "chip", io="spiking")
    for site, code in codes(snn).items():
        if str(site) != "0:conv0_input":  # pixels have both signs
            assert code.sides == "positive" and code.compared and code.largest <= 15
        if site.operation == "conv":
            assert code.center is None and code.offset is None
    usual = codes(onespike.spike(convolutional(), PICTURES, "fast"))
    assert any(code.sides == "even" and code.center is not None for code in usual.values())


def test_pixels_in_front_of_padding_have_no_center():
    centers = []
    for name in ("chip", "fast"):
        snn = onespike.spike(convolutional(), PICTURES, name)
        neurons = dict(named_neurons(snn))
        centers.append(neurons[Site.parse("0:conv0_input")].code().center)
    assert centers[0] is None and centers[1] is not None


def test_centers_stay_where_they_are_a_bias():
    snn = onespike.spike(attention(), tokens(), "chip")
    centered = {site.operation for site, code in codes(snn).items() if code.center is not None}
    assert centered == {"linear"}


@pytest.mark.parametrize(
    ("module", "bias"),
    [
        (nn.Conv2d(2, 2, 3), True),
        (nn.Conv2d(2, 2, 3, padding="valid"), True),
        (nn.Conv2d(2, 2, 3, padding=1), False),
        (nn.Conv2d(2, 2, 3, padding="same"), False),
        (nn.ConvTranspose2d(2, 2, 3), False),
        (nn.Identity(), False),
    ],
)
def test_padding_decides_whether_a_constant_is_a_bias(module, bias):
    assert is_bias(Site.parse("0:conv0_input"), nn.Sequential(module)) == bias


@pytest.mark.parametrize("levels", ["mixed:8", "bits:8"])
def test_calibration_alone_holds_the_payload(levels):
    snn = onespike.spike(attention(), tokens(), "sformer", levels=levels, payload_bits=3, io="spiking")
    assert max(code.largest for code in codes(snn).values()) <= 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"payload_bits": -1},
            r"^payload_bits must be from 1 to 24, or 0 for any level, not -1\. Chips have",
        ),
        ({"payload_bits": 25}, r"^payload_bits must be from 1 to 24"),
        (
            {"payload_bits": 2, "levels": "4,8"},
            r"none of 2 bits\. Give more payload_bits, or levels='bits:2'\.$",
        ),
        ({"centers": "none"}, r"^unknown centers 'none'"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        preset("chip", **changes)
