"""What tool chains for chips make of `integers`: hls4ml's C simulation, and lava's of Loihi 2. Each has its own environment."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import onespike
from onespike.recipe import Recipe

EXAMPLES = Path(__file__).parents[2] / "examples"


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


def test_hls4ml_simulates_the_golden_spikes(tmp_path: Path) -> None:
    pytest.importorskip("hls4ml", reason="hls4ml is not installed")
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    folder = exported(tmp_path, nn.Conv2d(4, 6, 3), nn.ReLU(), nn.MaxPool2d(2))
    main = runpy.run_path(str(EXAMPLES / "hls4ml_simulation.py"))["main"]
    compared, differ, output = main(folder, tmp_path / "project")
    assert compared > 500 and differ == 0 and output < 1e-4


def test_lava_fires_the_golden_spikes(tmp_path: Path) -> None:
    pytest.importorskip("lava", reason="lava-nc is not installed: it needs Python 3.10")
    folder = exported(tmp_path, nn.Conv2d(4, 6, 3, padding=1), nn.ReLU())
    main = runpy.run_path(str(EXAMPLES / "loihi2" / "graded_spikes.py"))["main"]
    compared, differ, answers = main(folder)
    assert compared > 500 and differ == answers == 0
