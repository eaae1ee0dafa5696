"""The fire function in ONNX fires what the neuron fires: every level, every bound and the numbers beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from exports.small import installed
from onespike.deploy.exports.byte_graph import bytes_
from onespike.deploy.exports.graph import Site, trace
from onespike.deploy.exports.onnx_file import _session, translated
from onespike.neurons import Neuron, ScaleFire
from onespike.neurons.baselines import DualMultiThreshold
from onespike.spikes.fire_functions import bounds
from onespike.spikes.levels import mixed_levels

installed("onnx")
from onespike.deploy.exports.onnx_nodes import TRANSLATIONS  # noqa: E402 (needs onnxscript)

LEVELS = {
    "linear": mixed_levels(10, 0),
    "exponential": mixed_levels(1, 7),
    "mixed": mixed_levels(8),
    "long tail": mixed_levels(2, 14),
    "own": (1, 2, 5, 6, 17),
    "far": (1, 100, 2**20),
    "one": (1,),
}
# With steps that are powers of two every bound is a float32 number, and so are its neighbors.
NEURONS: dict[str, Neuron] = {
    f"{name} {rounding}": ScaleFire(0.5, 0.25, levels=levels, rounding=rounding)
    for name, levels in LEVELS.items()
    for rounding in ("paper", "nearest", "thrifty")
} | {
    "even": ScaleFire(0.5, 0.5, levels=mixed_levels(8)),
    "positive": ScaleFire(0.3, levels=mixed_levels(8)),
    "negative": ScaleFire(0.0, 0.3, levels=mixed_levels(4)),
    "constants": ScaleFire(
        0.5, 0.25, levels=mixed_levels(4), center=torch.tensor(0.75), gain=torch.tensor([[1.0], [4.0]])
    ),
    "channel off": ScaleFire(
        torch.tensor([0.5, 0.0]).repeat(5), torch.tensor([0.0, 0.5]).repeat(5), levels=mixed_levels(4)
    ),
}


def edges() -> Tensor:
    """Every bound of every neuron, its neighbors in float32, numbers between, and the ends; both signs."""
    jumps = [bounds(n.code().levels, n.rounding) for n in NEURONS.values()]
    at = torch.tensor(sorted({b - 0.5 for of in jumps for b in of})) * 0.5
    beside = [torch.nextafter(at, torch.tensor(way)) for way in (-torch.inf, torch.inf)]
    ends = torch.tensor([0.0, 1e-38, 3e38])
    random = torch.rand(2000, generator=torch.Generator().manual_seed(0))
    x = torch.cat([at, *beside, random[:1000] * 200, random[1000:] * 2, ends])
    x = torch.cat([x, -x])
    return x[: len(x) // 20 * 20].view(-1, 2, 10)


X = edges()


class All(nn.Module):
    def __init__(self, neurons: dict[str, Neuron]) -> None:
        super().__init__()
        self.sites = nn.ModuleList(Site(name, neuron, []) for name, neuron in neurons.items())

    def forward(self, *args: Tensor) -> list[Tensor]:
        return [site.fire(*args)[0] for site in self.sites]  # type: ignore[operator]


@pytest.fixture(scope="module")
def fired(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    graph = trace(All(NEURONS), X)
    file: Path = tmp_path_factory.mktemp("onnx") / "all.onnx"
    translated(graph, list(NEURONS), {}, {}).save(str(file))
    values = _session(file).run(None, {"input": X.numpy()})
    return {name: torch.from_numpy(value) for name, value in zip(NEURONS, values, strict=True)}


@pytest.mark.parametrize("name", NEURONS)
def test_every_level_and_every_edge(name: str, fired: dict[str, Tensor]) -> None:
    neuron, site = NEURONS[name], Site(name, NEURONS[name], [])
    expected = neuron.counts(X)
    assert torch.equal(fired[name], expected) and torch.equal(site.fire(X)[0], expected)
    assert torch.equal(site(X), neuron(X))
    assert expected.abs().max() == neuron.largest


def test_a_neuron_whose_half_is_within_the_quotient() -> None:
    neuron = DualMultiThreshold(1.0, 2.0, levels=mixed_levels(8, 0))
    site = Site("mtn", neuron, [])
    x = torch.linspace(-3, 3, 1001)
    apart = (site.fire(x)[0] - neuron.counts(x)).abs()
    # rounded otherwise at the bounds themselves
    assert apart.max() <= 1 and (apart > 0).float().mean() < 0.01


def uniform() -> dict[str, Neuron]:
    """Neurons that are one byte, and one that is two: of one or two signs, steps by row or by channel, centers and gains."""
    numbers = torch.rand(10, generator=torch.Generator().manual_seed(1)) * 3 + 0.1
    rows = torch.tensor([[0.25], [8.0]])
    step = float(numbers[0])
    return {
        "one sign": ScaleFire(step, levels=mixed_levels(255, 0)),
        "two bytes": ScaleFire(step, levels=mixed_levels(3 * 128 + 64, 0)),
        "negative": ScaleFire(0.0, 2 * step, levels=mixed_levels(100, 0)),
        "seven bits": ScaleFire(step, step, levels=mixed_levels(63, 0)),
        "eight bits": ScaleFire(step, step, levels=mixed_levels(127, 0)),
        "rows": ScaleFire(rows * step, rows * step, levels=mixed_levels(20, 0)),
        "channels": ScaleFire(numbers, numbers, levels=mixed_levels(63, 0)),
        "gains": ScaleFire(numbers, numbers, levels=mixed_levels(63, 0), gain=rows),
        "center": ScaleFire(step, step, levels=mixed_levels(63, 0), center=torch.tensor(0.75), gain=rows),
    }


def test_uniform_levels_are_quantizers_that_fire_at_every_bound(tmp_path: Path) -> None:
    neurons = uniform()
    infinity = torch.tensor(torch.inf)
    bound, parts = torch.arange(300) + 0.5, []
    for step in (neurons["one sign"].positive, neurons["channels"].positive[3]):
        x = bound * step
        for _ in range(2):  # the least numbers that fire
            x = torch.where(x / step < bound, torch.nextafter(x, infinity), x)
        parts += [x, x * 2, torch.nextafter(x, infinity), x * (1 - 2**-20)]
    x = torch.cat([*parts, *(-part for part in parts)]).view(-1, 2, 10)
    graph = trace(All(neurons), x)
    bytes_(graph)
    translated(graph, list(neurons), {}, TRANSLATIONS).save(str(tmp_path / "all.onnx"))
    values = _session(tmp_path / "all.onnx").run(None, {"input": x.numpy()})
    model = pytest.importorskip("onnx").load(tmp_path / "all.onnx")
    assert [node.op_type for node in model.graph.node].count("QuantizeLinear") == len(neurons) + 1
    for (name, neuron), value in zip(neurons.items(), values, strict=True):
        assert torch.equal(torch.from_numpy(value), neuron.counts(x)), name
