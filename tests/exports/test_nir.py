"""NIR: read back by nir and run by Norse, every spike is the network's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import onespike
from exports.small import Attention, Convolutions, Deep, small
from onespike.errors import UsageError
from onespike.recipe import Recipe

for package in ("nir", "nirtorch", "norse"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'onespike[nir]'")

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


def converted(model: nn.Module, *shape: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(6, *shape)
    return onespike.spike(model.eval(), [x], SPIKING), x


@pytest.mark.parametrize("kind", ["deep", "pooled"])
def test_norse_fires_every_spike(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    snn, x = converted(Deep(), 6) if kind == "deep" else converted(Pooled(), 2, 8, 8)
    done = onespike.export(snn, "nir", tmp_path / "a.nir", x)
    found = done.comparison
    assert found.active > 50 and found.differ == 0 and found.answers_differ == 0
    assert found.output_difference <= 1e-5 * found.output_largest

    import nir

    graph = nir.read(tmp_path / "a.nir")
    kinds = {type(node).__name__ for node in graph.nodes.values()}
    assert kinds <= {"Input", "Output", "Affine", "Conv2d", "IF", "SumPool2d", "Flatten"}


def test_refusals(tmp_path: Path) -> None:
    def refusal(snn: nn.Module, x: Tensor) -> str:
        with pytest.raises(UsageError) as error:
            onespike.export(snn, "nir", tmp_path / "a.nir", x)
        assert list(tmp_path.iterdir()) == []
        return str(error.value)

    assert refusal(small(Deep)[0], small(Deep)[1][0]) == (
        "export: nir has no ReLU, and the input of the product before the output stays analog. Convert with io='spiking'."
    )
    assert refusal(*converted(Attention(), 5, 6)) == (
        "export: nir holds chains of products and ReLUs alone: embed:linear0_input codes an input of 2 dimensions. "
        "Try format='integers'."
    )
    assert refusal(*converted(Branched(), 6)) == (
        "export: nir holds chains of products and ReLUs alone: aten.add.Tensor stands before last:linear0_input. "
        "Try format='integers'."
    )
    assert refusal(*converted(Convolutions(), 3, 12, 12)) == (
        "export: nir holds chains of products and ReLUs alone: the convolution before middle:linear0_input has groups. "
        "Try format='integers'."
    )
