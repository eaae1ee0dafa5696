"""The benchmark of weights of fewer bits: errors that are passed on cost less where inputs are correlated."""

from __future__ import annotations

import runpy
from pathlib import Path

import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "weight_bits.py"


def test_compensation_lowers_the_error_of_the_outputs() -> None:
    parts = runpy.run_path(str(SCRIPT))
    torch.manual_seed(0)
    inputs = (torch.randn(400, 12) @ torch.randn(12, 40)).clamp(min=0).double()
    weight, moments = torch.randn(16, 40).double(), inputs.T @ inputs
    scale = parts["_scales"](weight, 7)
    nearest = (weight / scale).round().clamp(-7, 7)
    compensated = parts["compensate"](weight, scale, 7, moments)
    assert torch.equal(compensated, compensated.round()) and compensated.abs().max() <= 7
    errors = [((whole * scale - weight) @ inputs.T).square().sum() for whole in (nearest, compensated)]
    assert errors[1] < 0.5 * errors[0]
    # inputs that have nothing to do with one another take nothing back
    alone = parts["compensate"](weight, scale, 7, torch.eye(40, dtype=torch.float64))
    assert torch.equal(alone, nearest)
