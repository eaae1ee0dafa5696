"""NIR: read back by nir and run by Norse, every spike is the network's own."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onespike
from exports.small import Attention, Convolutions, Deep, installed
from onespike.deploy.exports import nir_graph
from onespike.errors import OnespikeWarning, UsageError
from onespike.recipe import Recipe, preset

installed("nir")

SPIKING = Recipe(io="spiking")


class Pooled(nn.Sequential):
    """Convolutions, BatchNorm, max-pooling and linear maps in a chain."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 3),
        )  # fmt: skip


class Unpadded(Pooled):
    """Nothing is padded, so that the lowest pixel may be any number."""

    def __init__(self) -> None:
        super().__init__()
        self[0].padding, self[6] = (0, 0), nn.Sequential(nn.MaxPool2d(2), nn.Flatten())
        self[4], self[7] = nn.Conv2d(4, 6, 2, padding=1), nn.Linear(24, 8)


class Branched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        return self.last((self.second(hidden) + hidden).relu())


def converted(model: nn.Module, *shape: int, recipe: Recipe = SPIKING) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(6, *shape)
    return onespike.spike(model.eval(), [x], recipe), x


class Mixed(nn.Sequential):
    """Functions that fall and rise, a product without a function, and BatchNorm of vectors."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(2, 4, 3, padding=1), nn.GELU(), nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.Tanh(),
            nn.Flatten(), nn.Linear(96, 8), nn.BatchNorm1d(8), nn.SiLU(), nn.Linear(8, 8), nn.Linear(8, 3),
        )  # fmt: skip


CHANNELS = Recipe(io="spiking", granularity="channel", passes=("nearest", "center"))
MADE = {
    "deep": (Deep, SPIKING),
    "pooled": (Pooled, SPIKING),
    "analog input": (Pooled, Recipe(io="spiking", exclude=("0:*",))),
    "centers": (Deep, CHANNELS),
    "functions": (Mixed, SPIKING),
    "by place": (Pooled, Recipe(io="spiking", granularity="channel")),
    "chip": (Unpadded, preset("chip", passes=("nearest", "center", "allocate"))),
    "chip, spiking input": (Mixed, preset("chip", io="spiking", passes=("nearest", "center", "allocate"))),
}
SHAPES = {Unpadded: (2, 8, 8), Deep: (6,), Pooled: (2, 8, 8), Mixed: (2, 8, 8)}


@pytest.mark.parametrize(("kind", "recipe"), MADE.values(), ids=MADE)
def test_norse_fires_every_spike(kind: type[nn.Module], recipe: Recipe, tmp_path: Path) -> None:
    torch.manual_seed(1)
    snn, x = converted(kind(), *SHAPES[kind], recipe=recipe)
    done = onespike.export(snn, "nir", tmp_path / "a.nir", x, facts={"scale": 0.25})
    comparison = done.comparison
    assert comparison.active > 50 and comparison.differ == 0 and comparison.answers_differ == 0
    assert comparison.output_difference <= 1e-5 * comparison.output_largest
    assert fnmatchcase(done.notes[0], "* binary neurons for * counts of an input")

    import nir

    graph = nir.read(tmp_path / "a.nir")
    kinds = {type(node).__name__ for node in graph.nodes.values()}
    assert kinds <= {"Input", "Output", "Affine", "Conv2d", "IF", "SumPool2d", "Flatten"}
    assert graph.metadata["onespike.scale"] == "0.25"
    fires = [node for node in graph.nodes.values() if isinstance(node, nir.IF)]
    assert all("_input" in str(node.metadata["onespike.site"]) for node in fires)


@pytest.mark.filterwarnings("ignore")  # of the readers, about one another
@pytest.mark.parametrize("reader", ["norse", "spikingjelly.activation_based.nir_exchange", "sinabs"])
def test_other_simulators_fire_the_golden_spikes(reader: str, tmp_path: Path) -> None:
    pytest.importorskip(reader, reason=f"{reader} is not installed")
    torch.manual_seed(1)
    snn, x = converted(Pooled(), 2, 8, 8)
    for name in ("nir", "integers"):
        onespike.export(snn, name, tmp_path / f"a.{name}", x)
    main = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "nir_readers.py"))["main"]
    compared, differ = main(tmp_path / "a.nir", tmp_path / "a.integers", reader.partition(".")[0])
    assert compared > 500 and differ == 0


def test_the_cost_is_stated_before_a_large_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nir_graph, "LARGE", 100)
    snn, x = converted(Deep(), 6)
    with pytest.warns(OnespikeWarning) as stated:
        onespike.export(snn, "nir", tmp_path / "a.nir", x)
    words = "export: * binary neurons for * counts of an input, * MB. Convert with fewer levels: preset='chip', io='spiking'."
    assert fnmatchcase(str(stated[0].message), words)


def chain(*middle: nn.Module) -> nn.Sequential:
    """A convolution, what stands between, and linear maps."""
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), *middle, nn.Linear(8, 3))


class Twice(nn.Sequential):
    """One layer in two places."""

    def __init__(self) -> None:
        layer = nn.Linear(6, 6)
        super().__init__(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(6, 3))


class Backwards(Branched):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        return self.last((hidden + self.second(hidden)).relu())


PIXELS = "Convert with preset='chip' and io='spiking', or try format='integers'."
CHIP = "Convert with preset='chip', or try format='integers'."
REMEDIES = {"pixels": PIXELS, "many levels": CHIP, "gains": CHIP}
NAMED = {"input": torch.randn(6, 6)}
REFUSED: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], str]] = {
    "attention": (lambda: converted(Attention(), 5, 6), "embed:linear0_input codes an input of 2 dimensions"),
    "a sum": (lambda: converted(Branched(), 6), "aten.add.Tensor stands before last:linear0_input"),
    "a branch": (lambda: converted(Backwards(), 6), "aten.add.Tensor stands before last:linear0_input"),
    "groups": (
        lambda: converted(Convolutions(), 3, 12, 12),
        "the convolution before middle:linear0_input has groups",
    ),
    "pixels": (
        lambda: converted(Pooled(), 2, 8, 8, recipe=CHANNELS),
        "the bias before 4:conv0_input differs by place",
    ),
    "many levels": (
        lambda: converted(Deep(), 6, recipe=Recipe(io="spiking", levels="bits:10")),
        "0:linear0_input has 1023 levels",
    ),
    "gains": (
        lambda: converted(Deep(), 6, recipe=Recipe(io="spiking", passes=("nearest", "tokens"))),
        "0:linear0_input has gains that depend on the input",
    ),
    "a padded pool": (
        lambda: converted(chain(nn.MaxPool2d(3, 2, padding=1), nn.Flatten(), nn.Linear(64, 8), nn.ReLU()), 2, 8, 8),
        "the max-pool before 4:linear0_input has a padding or a dilation, or rounds up",
    ),
    "an average": (
        lambda: converted(chain(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 8), nn.ReLU()), 2, 8, 8),
        "aten.avg_pool2d.default stands before 4:linear0_input",
    ),
    "another shape": (
        lambda: converted(chain(nn.Flatten(2), nn.Linear(16, 8), nn.ReLU()), 2, 4, 4),
        "the shape changes before 3:linear0_input",
    ),
    "tokens": (
        lambda: converted(Deep(), 5, 6, recipe=Recipe(io="spiking", exclude=("0:*",))),
        "the product before 2:linear0_input is neither of vectors nor of images",
    ),
    "a last ReLU": (lambda: converted(nn.Sequential(Deep(), nn.ReLU()), 6), "aten.relu.default stands before the output"),
    "several inputs": (
        lambda: (onespike.spike(Deep().eval(), [NAMED], SPIKING), NAMED), "this network takes more than one tensor",
    ),
}  # fmt: skip


def test_a_site_that_fires_twice_is_refused(tmp_path: Path) -> None:
    snn, x = converted(Twice(), 6)
    with pytest.raises(
        UsageError, match="0:linear0_input fires more than once in a forward, which nir cannot"
    ):
        onespike.export(snn, "nir", tmp_path / "a.nir", x)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, tmp_path: Path) -> None:
    make, reason = REFUSED[name]
    snn, x = make()
    with pytest.raises(UsageError) as error:
        onespike.export(snn, "nir", tmp_path / "a.nir", x)
    remedy = REMEDIES.get(name, "Try format='integers'.")
    assert (
        str(error.value)
        == f"export: nir holds chains of products and elementwise functions alone: {reason}. {remedy}"
    )
    assert list(tmp_path.iterdir()) == []
