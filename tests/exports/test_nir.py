"""NIR: read back by nir and run by Norse, every spike is the network's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onespike
from exports.small import Attention, Convolutions, Deep, installed
from onespike.errors import UsageError
from onespike.recipe import Recipe

installed("nir")

SPIKING = Recipe(io="spiking")


class Pooled(nn.Sequential):
    """Convolutions, BatchNorm, max-pooling and linear maps in a chain."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 3),
        )  # fmt: skip


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


@pytest.mark.parametrize("kind", ["deep", "pooled"])
def test_norse_fires_every_spike(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    snn, x = converted(Deep(), 6) if kind == "deep" else converted(Pooled(), 2, 8, 8)
    done = onespike.export(snn, "nir", tmp_path / "a.nir", x)
    comparison = done.comparison
    assert comparison.active > 50 and comparison.differ == 0 and comparison.answers_differ == 0
    assert comparison.output_difference <= 1e-5 * comparison.output_largest

    import nir

    graph = nir.read(tmp_path / "a.nir")
    kinds = {type(node).__name__ for node in graph.nodes.values()}
    assert kinds <= {"Input", "Output", "Affine", "Conv2d", "IF", "SumPool2d", "Flatten"}


def chain(*middle: nn.Module) -> nn.Sequential:
    """A convolution, what stands between, and linear maps."""
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), *middle, nn.Linear(8, 3))


class Backwards(Branched):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        return self.last((hidden + self.second(hidden)).relu())


ALONE = "export: nir holds chains of products and ReLUs alone: {}. Try format='integers'."
REFUSED: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], str]] = {
    "attention": (lambda: converted(Attention(), 5, 6), "embed:linear0_input codes an input of 2 dimensions"),
    "a sum": (lambda: converted(Branched(), 6), "aten.add.Tensor stands before last:linear0_input"),
    "a branch": (lambda: converted(Backwards(), 6), "last:linear0_input has a branch (aten.add.Tensor)"),
    "groups": (
        lambda: converted(Convolutions(), 3, 12, 12),
        "the convolution before middle:linear0_input has groups",
    ),
    "centers": (
        lambda: converted(Deep(), 6, recipe=Recipe(io="spiking", passes=("nearest", "center"))),
        "0:linear0_input has a center or gains",
    ),
    "channels": (
        lambda: converted(Deep(), 6, recipe=Recipe(io="spiking", granularity="channel")),
        "0:linear0_input has a step for each channel",
    ),
    "no ReLU": (
        lambda: converted(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), 6),
        "1:linear0_input fires on negative inputs, which no ReLU leaves",
    ),
    "a padded pool": (
        lambda: converted(chain(nn.MaxPool2d(3, 2, padding=1), nn.Flatten(), nn.Linear(64, 8), nn.ReLU()), 2, 8, 8),
        "the max-pool before 4:linear0_input has a padding or a dilation",
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
    "a last ReLU": (lambda: converted(nn.Sequential(Deep(), nn.ReLU()), 6), "the network does not end with a product"),
    "several inputs": (lambda: named(Deep()), "this network takes more than one tensor"),
}  # fmt: skip


def named(model: nn.Module) -> tuple[nn.Module, Any]:
    batch = {"input": torch.randn(6, 6)}
    return onespike.spike(model.eval(), [batch], SPIKING), batch


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, tmp_path: Path) -> None:
    make, reason = REFUSED[name]
    snn, x = make()
    with pytest.raises(UsageError) as error:
        onespike.export(snn, "nir", tmp_path / "a.nir", x)
    expected = ALONE.format(reason)
    if name == "centers":  # the passes have made them
        expected = expected.replace("Try", "Convert with preset='sformer' and io='spiking', or try")
    assert str(error.value) == expected
    assert list(tmp_path.iterdir()) == []
