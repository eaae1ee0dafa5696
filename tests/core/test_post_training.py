"""Integer networks to compare with: what is rounded, to which grid, and that nothing else is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from contract.conversion_contract import randomize_, run
from contract.networks import converted, mlp, rows, sequences, transformer
from onespike.deploy.post_training import (
    GRANULARITIES,
    Quantized,
    observe,
    rounded,
    rounded_weight,
    with_integer_weights,
)
from onespike.errors import UsageError
from onespike.runs.forms import compared, rivals, spiking_rivals
from onespike.tasks import Accuracy


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_grid_holds_zero_and_so_many_points(bits):
    x = torch.linspace(-3, 5, 10_001)
    actual = rounded(x, torch.tensor(-1.0), torch.tensor(2.0), bits)
    assert len(actual.unique()) == 2**bits and 0.0 in actual.tolist()
    step = 3 / (2**bits - 1)
    inside = (x > -1 + step) & (x < 2 - step)
    assert float((actual - x)[inside].abs().max()) <= step / 2 * 1.001


def test_a_weight_has_a_scale_per_output_channel():
    weight = torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(0))
    weight *= torch.logspace(-3, 3, 6)[:, None, None]
    actual = rounded_weight(weight, 8)
    for row, original in zip(actual, weight, strict=True):
        steps = row.flatten() / row.abs()[row != 0].min()
        assert float((row - original).abs().max() / original.abs().max()) < 1 / 100
        assert len(row.unique()) > 10 and float(steps.abs().max()) < 2**8
    transposed = rounded_weight(weight.transpose(0, 1), 8, axis=1).transpose(0, 1)
    assert torch.equal(transposed, actual)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_more_bits_are_nearer_and_the_original_stays(granularity):
    model, x = transformer(), sequences()
    expected, before = run(model, x), [p.clone() for p in model.parameters()]
    observed = observe(model, [x[:6], x[6:]])
    errors = [
        float((run(Quantized(model, observed, bits, granularity), x) - expected).abs().max())
        for bits in (4, 8, 12)
    ]
    assert errors[0] > 4 * errors[1] > 0 and errors[2] < errors[1] / 4
    assert torch.equal(run(model, x), expected)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_ranges_per_channel_hold_channels_of_different_size():
    """One channel is a thousand times as large: with one range for all, the others are lost."""
    sizes = torch.tensor([1.0, 1.0, 1.0, 1000.0])
    model, x = nn.Sequential(nn.Linear(4, 4, bias=False)), rows() * sizes
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4) / sizes)
    observed = observe(model, [x])
    tensor, channel = (run(Quantized(model, observed, 8, g), x) - run(model, x) for g in GRANULARITIES)
    assert float(channel.abs().max()) < float(tensor.abs().max()) / 10


def test_convolutions_with_groups_and_transposed_ones():
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=2), nn.ReLU(), nn.ConvTranspose2d(8, 6, 2, stride=2), nn.GELU(), nn.Flatten(),
        nn.LazyLinear(3),
    )  # fmt: skip
    x = torch.randn(8, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    model(x)
    randomize_(model)
    observed = observe(model, [x])
    assert sorted(observed.weights.values()) == [0, 0, 1]
    for granularity in GRANULARITIES:
        expected, actual = run(model, x), run(Quantized(model, observed, 8, granularity), x)
        assert 0 < float((actual - expected).norm() / expected.norm()) < 0.05


def test_sequences_of_other_lengths():
    model, x = transformer(), sequences()
    observed = observe(model, [x, x[:, :3]])
    for granularity in GRANULARITIES:
        network = Quantized(model, observed, 8, granularity)
        for part in (x, x[:, :3], x[:, :2]):
            assert run(network, part) == pytest.approx(run(model, part), abs=0.2)


def test_without_inputs_there_is_no_range():
    with pytest.raises(UsageError, match=r"^quantization: the network ran no product\. Give at least one"):
        observe(mlp(), [])
    with pytest.raises(UsageError, match=r"^unknown granularity 'row'\."):
        Quantized(mlp(), observe(mlp(), [rows()]), 8, "row")


def test_a_spiking_network_with_integer_weights_keeps_its_neurons():
    model, x = transformer(), sequences()
    snn = converted(model, x)
    actual = with_integer_weights(snn, model, observe(model, [x]))
    weights = {n: p for n, p in actual.named_parameters() if n.endswith("qkv.weight")}
    assert all(len(row.unique()) <= 256 for w in weights.values() for row in w) and weights
    assert not torch.equal(run(actual, x), run(snn, x))
    assert len(list(actual.buffers())) == len(list(snn.buffers()))


def test_networks_are_paired_image_by_image():
    model, x = transformer(), sequences()
    labels = run(model, x).argmax(-1)
    snn, observed = converted(model, x), observe(model, [x])
    networks = {**spiking_rivals(snn, model, observed, "binary"), **rivals(model, observed)}
    actual = {
        row["network"]: row
        for row in compared(model, networks, [(x[:5], labels[:5]), (x[5:], labels[5:])], Accuracy)
    }
    assert list(actual)[:4] == ["spiking", "spiking, 8-bit weights", "W8A8, per tensor", "W8A8, per channel"]
    columns = [row["column"] for row in actual.values()]
    assert columns[:6] == ["binary", "binary-int8", "w8a8", "w8a8", "w4a4", "w4a4"]
    right = {name: run(network, x).argmax(-1) == labels for name, (network, _) in networks.items()}
    for name, row in actual.items():
        assert row["snn"]["top1"] == pytest.approx(100 * float(right[name].double().mean()))
        difference = right[name].double() - right["spiking"].double()
        assert row["beside"]["difference"] == pytest.approx(100 * float(difference.mean()))
        error = 100 * float(difference.std(correction=0)) / len(x) ** 0.5
        assert row["beside"]["standard_error"] == pytest.approx(error)
    assert actual["spiking"]["beside"]["difference"] == 0.0
    assert compared(model, {"same": (model, "w8a8")}, [(x, None)], Accuracy)[0]["kl"] == 0.0
    assert list(spiking_rivals(snn, model, observed, "nonzero")) == ["spiking"]  # no integer reading
