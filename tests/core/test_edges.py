"""Edges in 8 bits: pixels exactly, the output layer's input nearly, both times 8-bit weights, and everything undone by `revert_`."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import onespike
from contract.networks import converted
from onespike import Recipe
from onespike.errors import UsageError
from onespike.neurons import EightBit
from onespike.presets import PRESETS

MEAN, STD = (
    torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1),
    torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1),
)
EDGES = Recipe(io="int8")


def pictures(count: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Pixels from 0 to 255, and what a network gets of them."""
    pixels = torch.randint(0, 256, (count, 3, 8, 8), generator=torch.Generator().manual_seed(seed))
    pixels[0, :, 0, :2] = torch.tensor([0, 255])  # black and white in every channel
    return pixels, (pixels / 255 - MEAN) / STD


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3, stride=2), nn.GELU(), nn.Flatten(),
        nn.Linear(72, 16), nn.Tanh(), nn.Linear(16, 5),
    ).eval()  # fmt: skip


def places(snn: nn.Module) -> dict[str, nn.Module]:
    return {str(site): place for site, place in onespike.named_neurons(snn)}


def test_pixels_are_exact_and_weights_are_8_bit_integers():
    x = pictures()[1]
    snn = converted(network(), x, EDGES)
    first, last = places(snn)["0:conv0_input"], places(snn)["8:linear0_input"]
    assert isinstance(first, EightBit) and isinstance(last, EightBit)
    others, y = pictures(seed=1)
    assert torch.equal(first.spikes(y), others.int())
    assert torch.allclose(first(y), y, atol=1e-6)
    assert last.largest == 127 and last.code().sides == "even"
    for module, units in ((snn[0], first.positive.view(1, 3, 1, 1)), (snn[8], 1.0)):
        rows = (module.weight.detach().double() * units).flatten(1)
        integers = rows / rows.abs().amax(1, keepdim=True) * 127
        assert torch.allclose(integers, integers.round(), atol=1e-3)


def test_the_network_is_near_the_analog_one_and_equal_on_integers():
    x = pictures(16)[1]
    model = network()
    analog, edges = (converted(model, x, Recipe(io=io)) for io in ("analog", "int8"))
    assert (edges(x) - analog(x)).abs().mean() < 0.05 * analog(x).std()
    assert torch.equal(onespike.optimize(edges)(x).argmax(1), edges(x).argmax(1))
    assert "integer_conv0_input" in dict(onespike.optimize(edges, integer_units=True)[0].named_children())


def test_revert_restores_every_bit():
    model, x = network(), pictures()[1]
    snn = onespike.revert_(converted(copy.deepcopy(model), x, EDGES))
    assert all(
        torch.equal(a, b) for a, b in zip(snn.state_dict().values(), model.state_dict().values(), strict=True)
    )


class Writer(nn.Module):
    """A head that is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.inner, self.head = (
            nn.Embedding(9, 8),
            nn.Linear(8, 8),
            nn.Linear(8, 9, bias=False),
        )
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.relu(self.inner(self.embedding(tokens))))


def test_a_tied_embedding_stays_tied():
    model, tokens = Writer(), torch.randint(0, 9, (4, 9), generator=torch.Generator().manual_seed(0))
    snn = converted(model, tokens, EDGES)
    assert snn.head.weight is snn.embedding.weight
    assert not torch.equal(snn.head.weight, model.head.weight)
    onespike.revert_(snn)
    assert snn.head.weight is snn.embedding.weight and torch.equal(snn.head.weight, model.head.weight)


class Bare(nn.Module):
    """Its first weight is no module's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(6, 4))
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.inner(torch.relu(nn.functional.linear(x, self.weight)))))


def test_an_edge_whose_weight_is_no_layers_stays_analog_and_says_so():
    snn = converted(Bare(), torch.randn(32, 4, generator=torch.Generator().manual_seed(0)), EDGES)
    reason = places(snn)[":linear0_input"].extra_repr()
    assert (
        reason
        == "input of the network; not in 8 bits, since its weight is not that of a linear map or convolution"
    )
    assert isinstance(places(snn)["head:linear0_input"], EightBit)


def test_refusals():
    with pytest.raises(
        UsageError, match=r"^edges in 8 bits are for one timestep\. Use io='analog', or steps=1\.$"
    ):
        Recipe(io="int8", steps=2)
    x = pictures()[1]
    thresholds = onespike.calibrate(network(), [x])
    with pytest.raises(
        UsageError, match=r"calibrated with io='analog', and the recipe has io='int8'\. Calibrate with"
    ):
        onespike.convert(network(), thresholds, EDGES)
    onespike.convert(network(), thresholds, Recipe(io="spiking"))  # the same thresholds serve


def test_the_default_presets_have_8_bit_edges_and_the_papers_are_analog():
    edges = {name for name in PRESETS if onespike.preset(name).io == "int8"}
    assert edges == {"fast", "best", "text", "chip"}
