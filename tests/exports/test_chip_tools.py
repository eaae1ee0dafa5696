"""What tool chains for chips make of `integers`: hls4ml's C simulation, and lava's of Loihi 2. Each has its own environment."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import onespike
from onespike.recipe import Recipe

EXAMPLES = Path(__file__).parents[2] / "examples"


class Residual(nn.Module):
    """Two residual sums, between a padded max-pool and a mean: what is behind the first product is read as a value and as sums."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.pool, self.body, self.aside = nn.MaxPool2d(3, 2, 1), nn.Sequential(*body), nn.Conv2d(4, 4, 1)
        self.last, self.mean = nn.Conv2d(4, 4, 3, padding=1), nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(x)
        x = (self.body(x) + x).relu()
        pooled: Tensor = self.mean((self.last(x) + self.aside(x)).relu())
        return pooled


def exported(folder: Path, *middle: nn.Module) -> Path:
    """Export a CNN of 12 × 12 with steps by channel."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), *middle, nn.Flatten(), nn.LazyLinear(12),
        nn.ReLU(), nn.Linear(12, 3),
    )  # fmt: skip
    x = torch.rand(8, 1, 12, 12)
    model(x)
    recipe = Recipe(io="spiking", granularity="channel", levels="bits:4", rounding="nearest")
    onespike.export(onespike.spike(model.eval(), [x], recipe), "integers", folder / "a", [x])
    return folder / "a"


CNNS = {
    "a chain": lambda: [nn.Conv2d(4, 6, 3), nn.ReLU(), nn.MaxPool2d(2)],
    "branches": lambda: [Residual(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))],
}


@pytest.mark.parametrize("middle", CNNS.values(), ids=CNNS)
def test_hls4ml_simulates_the_golden_spikes(middle: Callable[[], list[nn.Module]], tmp_path: Path) -> None:
    pytest.importorskip("hls4ml", reason="hls4ml is not installed")
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    folder, script = exported(tmp_path, *middle()), EXAMPLES / "hls4ml_simulation.py"
    command = [sys.executable, script, folder, tmp_path / "project"]  # hls4ml keeps what is registered
    ended = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    compared, differ, output = (float(word) for word in re.findall(r"[\d.e-]*\d", ended))
    assert compared > 500 and differ == 0 and output < 1e-4


def test_lava_fires_the_golden_spikes(tmp_path: Path) -> None:
    pytest.importorskip("lava", reason="lava-nc is not installed: it needs Python 3.10")
    folder = exported(tmp_path, nn.Conv2d(4, 6, 3, padding=1), nn.ReLU())
    main = runpy.run_path(str(EXAMPLES / "loihi2" / "graded_spikes.py"))["main"]
    compared, differ, answers = main(folder)
    assert compared > 500 and differ == answers == 0
