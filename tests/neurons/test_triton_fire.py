"""The Triton kernel gives the bits of the plain form. Without a GPU it runs under Triton's interpreter, on the CPU."""

from __future__ import annotations

import itertools
from importlib import import_module

import pytest
import torch

from neurons.test_fused_fire import LEVELS, SIDES, plain, same, sweep
from onespike.neurons import Scale, ScaleFire
from onespike.neurons.baselines import DualMultiThreshold

pytest.importorskip("triton", reason="Triton is not installed: GPUs run the plain form")

# numpy's, of infinities, in the interpreter
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

COUNTS = ("paper", torch.float32, False)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Neurons on the CPU take the way of CUDA, and Triton's kernel is run by its interpreter."""
    from triton.runtime.interpreter import InterpretedFunction

    from onespike.kernels import gpu

    monkeypatch.setattr(gpu, "kernel", InterpretedFunction(gpu.kernel.fn))
    fire = import_module("onespike.kernels.firing")
    monkeypatch.setattr(
        fire, "_native", lambda x, code, plans, decoded: fire._around(x, code, decoded, gpu.launch)
    )


@pytest.mark.parametrize("levels", ["mixed:8", "linear", "exponential"])
@pytest.mark.parametrize("sides", SIDES)
def test_the_same_bits(levels: str, sides: str) -> None:
    for rounding, dtype, decoded in (*itertools.product(["paper", "nearest"], DTYPES, [True]), COUNTS):
        cell = ScaleFire(*SIDES[sides], levels=LEVELS[levels], rounding=rounding, scale=Scale(0.3))
        x = sweep(cell, dtype)[::3]
        found = cell.fused(x, decoded=decoded)
        assert found is not None and same(found, plain(cell, x, decoded=decoded)), (rounding, dtype, decoded)


def test_strides_come_out_as_the_plain_form_leaves_them() -> None:
    cell = ScaleFire(0.5, 0.3, levels=LEVELS["mixed:8"])
    q = torch.randn(2, 5, 3, 2, 4, generator=torch.Generator().manual_seed(3)).permute(2, 0, 3, 1, 4)[0]
    for x in (q, q.transpose(-2, -1), q.expand(3, *q.shape), q[..., ::2], q[0, 0, 0, 0]):
        found = cell.fused(x, decoded=True)
        assert found is not None and same(found, plain(cell, x, decoded=True))


def test_what_has_no_closed_form_runs_plain() -> None:
    x = torch.linspace(-3, 3, 50)
    for cell in (ScaleFire(0.5, 0.3, levels=LEVELS["table"]), DualMultiThreshold(1.0, 1.0, levels=(1, 2, 3))):
        assert cell.fused(x, decoded=True) is None
        assert same(cell(x), plain(cell, x, decoded=True))
