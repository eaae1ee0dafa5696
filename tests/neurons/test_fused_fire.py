"""The fused fire function gives the bits of the plain one, and steps aside wherever only the plain one will do."""

from __future__ import annotations

import copy
import itertools
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from contract.networks import threads
from contract.neuron_contract import DTYPES, bits, inputs
from neurons.test_fire import neighbors
from onespike.kernels import build as native
from onespike.neurons import NEURONS, Neuron, Scale, ScaleFire
from onespike.passes.layout import digit_levels
from onespike.spikes import mixed_levels
from onespike.spikes.fire_functions import bounds

LEVELS = {
    "mixed:8": mixed_levels(8),
    "mixed:4": mixed_levels(4),
    "mixed:64+3": mixed_levels(64, 3),
    "linear": tuple(range(1, 17)),
    "exponential": tuple(2**k for k in range(16)),
    "longest": mixed_levels(1, 24),
    "digits": digit_levels(3, 512),  # dense at first, sparse beyond
    "table": (1, 2, 3, 5, 9, 10, 40, 263),
    "one": (1,),
    "far": (1, 2**24),
}
SIDES = {
    "both": (0.75, 0.3),
    "positive": (0.7, 0.0),
    "negative": (0.0, 0.11),
    "channels": (torch.tensor([0.1, 0.0, 0.7]), torch.tensor([0.2, 0.3, 0.0])),
    "channels of one side": (torch.tensor([0.1, 0.5, 0.7]), 0.4),
    "planes": (torch.tensor([0.3, 0.0]).view(2, 1, 1), torch.tensor([0.0, 0.9]).view(2, 1, 1)),
    "enormous": (1e37, torch.tensor([1e37, 1.0, 3e38])),
    "vanishing": (1e-45, 0.5),
}
needs_kernels = pytest.mark.skipif(native.library() is None, reason=f"no kernels here: {native.note()}")


def plain(cell: Neuron, x: Tensor, *, decoded: bool) -> Tensor:
    """The neuron without its kernel: with gradients on, the plain form runs."""
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        return (cell(x) if decoded else cell.counts(x)).detach()


def same(found: Tensor, expected: Tensor) -> bool:
    """Equal to the bit, strides and type included; a NaN is a NaN."""
    nan = expected.isnan()
    return (
        (found.dtype, found.stride()) == (expected.dtype, expected.stride())
        and torch.equal(found.isnan(), nan)
        and torch.equal(bits(found)[~nan], bits(expected)[~nan])
    )


def sweep(cell: Neuron, dtype: torch.dtype) -> Tensor:
    """Dense values, the neighbors of every threshold, zeros, infinities and NaN, in a shape that channels fit."""
    jumps = torch.tensor(bounds(cell.levels, cell.rounding)) - 0.5
    steps = [s for side in cell.code().units() for s in side.flatten().tolist() if s > 0]
    edges = torch.cat([neighbors(step * jumps) for step in steps])
    special = torch.tensor([0.0, -0.0, torch.nan, torch.inf, -torch.inf, 1e-45, -1e-45, 3.4e38, -3.4e38])
    dense = torch.linspace(-12, 12, 5001)
    x = torch.cat([edges, -edges, special, dense, inputs()])
    return x[: len(x) // 6 * 6].reshape(-1, 2, 1, 3).to(dtype)


@needs_kernels
@pytest.mark.parametrize("rounding", ["paper", "nearest", "thrifty"])
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("sides", SIDES)
def test_the_same_bits(levels: str, sides: str, rounding: str) -> None:
    cell = ScaleFire(*SIDES[sides], levels=LEVELS[levels], rounding=rounding, scale=Scale(0.3))
    for dtype, decoded in itertools.product(DTYPES, (True, False)):
        x = sweep(cell, dtype)
        expected = plain(cell, x, decoded=decoded)
        with torch.inference_mode():
            found = cell(x) if decoded else cell.counts(x)
            fused = cell.fused(x, decoded=decoded)
        assert same(found, expected), (dtype, decoded)
        if sides not in ("vanishing",):
            assert fused is not None and same(fused, expected)


@needs_kernels
@pytest.mark.parametrize("name", ["mtn", "dual-mtn"])
def test_the_multi_threshold_neurons_too(name: str) -> None:
    cell = NEURONS[name](0.7, 0.3 if name == "dual-mtn" else 0.0, levels=tuple(range(1, 33)))
    for dtype, decoded in itertools.product(DTYPES, (True, False)):
        x = sweep(cell, dtype)
        fused = cell.fused(x, decoded=decoded)
        assert fused is not None and same(fused, plain(cell, x, decoded=decoded))


@needs_kernels
def test_any_strides_come_out_as_the_plain_form_leaves_them() -> None:
    cell = ScaleFire(0.5, 0.3, levels=LEVELS["mixed:8"])
    up, down = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.0, 0.2, 0.1]])
    by_channel = ScaleFire(up, down, levels=LEVELS["mixed:8"])
    qkv = torch.randn(2, 5, 3, 2, 4, generator=torch.Generator().manual_seed(3))
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    views = [q, k.transpose(-2, -1), q.expand(3, *q.shape), qkv[..., ::2], qkv.to(torch.bfloat16).mT, qkv[:0]]
    wide = torch.randn(2, 7, 3, 4, 16, generator=torch.Generator().manual_seed(4))  # pieces of 64, 192 apart
    q, k, v = wide.permute(2, 0, 3, 1, 4).unbind(0)
    views += [q, k.transpose(-2, -1), v[:, :2], v[:, :, 1:], wide[:, :, 1:], wide[0, :, 1]]
    views += [v.expand(2, *v.shape), wide[:, :, 1].expand(5, 2, 7, 4, 16), wide[:, :1, 1].expand(2, 5, 4, 16)]
    planar = torch.linspace(-3, 3, 72).view(2, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    views += [wide.double()[:, :, 2], planar, torch.tensor(0.7)]
    for x in views:
        for kind in (cell, by_channel) if x.dim() and x.shape[-1] == 4 else (cell,):
            before = x.clone()
            fused = kind.fused(x, decoded=True)
            assert fused is not None and same(fused, plain(kind, x, decoded=True))
            assert torch.equal(x, before) and fused.data_ptr() != (x.data_ptr() or None)
    steps = torch.tensor([0.1, 0.2, 0.7, 0.4]).view(4, 1, 1)
    planes = ScaleFire(steps, steps.flip(0), levels=LEVELS["mixed:8"])
    assert same(planes(planar), plain(planes, planar, decoded=True))


@needs_kernels
def test_constants_around_spikes_and_steps_along_any_axes() -> None:
    """Steps by head and channel, centers, offsets and gains, in every order of memory."""
    random = torch.Generator().manual_seed(7)
    qkv = torch.randn(2, 5, 3, 4, 16, generator=random)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # [batch, heads, rows, inner]
    head, wide = torch.rand(4, 1, 1, generator=random) + 0.1, torch.rand(4, 1, 16, generator=random) + 0.1
    row = 2.0 ** torch.randint(-3, 3, (5, 1), generator=random)
    off = torch.where(wide > 0.6, 0.0, wide)
    cells = [
        ScaleFire(head, 0.3, levels=LEVELS["mixed:8"], scale=Scale(0.3)),
        ScaleFire(wide, off, levels=LEVELS["table"], rounding="nearest"),
        ScaleFire(0.5, 0.25, levels=(1, 2, 3), center=torch.tensor(0.3)),
        ScaleFire(wide, head, levels=LEVELS["mixed:8"], center=wide - 0.5, gain=row, scale=Scale(0.7)),
        ScaleFire(head, head, levels=(1, 2), center=wide - 0.5, offset=head, gain=row),
    ]
    keys = ScaleFire(head, 0.0, levels=(1, 2, 5), gain=row.mT, center=wide.mT - 0.4)
    views = [(cell, x) for cell in cells for x in (q, k, v, v.contiguous(), q.double(), q[:, :, :, :].half())]
    views += [(keys, k.transpose(-2, -1))]
    for cell, x in views:
        for decoded in (True, False):
            for _ in range(2):  # the second time by the plan of the first
                fused, expected = cell.fused(x, decoded=decoded), plain(cell, x, decoded=decoded)
                assert fused is not None and torch.equal(fused, expected)
                # a table's counts are contiguous in the plain form
                assert same(fused, expected) or not decoded


@needs_kernels
def test_plans_follow_the_tensors_that_they_point_to() -> None:
    x = inputs()[:12].reshape(2, 6)
    cell = ScaleFire(torch.rand(6) + 0.1, 0.2, levels=(1, 2, 3), scale=Scale(0.5))
    twin = copy.deepcopy(cell)
    for change in (
        lambda: cell.scale.set_(0.25),
        lambda: cell.positive.mul_(2),
        lambda: setattr(cell, "negative", torch.tensor(0.7)),
        cell.share_memory,
        lambda: cell.load_state_dict(twin.state_dict()),
    ):
        cell(x)
        change()
        assert same(cell(x), plain(cell, x, decoded=True))
    assert twin._plans == {} and pickle.loads(pickle.dumps(cell))._plans == {}


@needs_kernels
def test_what_the_kernel_does_not_know_goes_the_plain_way() -> None:
    x = inputs()[:12].reshape(2, 2, 3)
    gains = ScaleFire(0.5, levels=(1, 2), gain=torch.tensor([1.0, 2.0, 0.5]))  # they differ within a row
    assert gains.fused(x, decoded=True) is None
    assert torch.equal(gains(x), plain(gains, x, decoded=True))
    spread = ScaleFire(torch.arange(1.0, 5.0).view(4, 1), levels=(1, 2))  # broadcasts the input to its shape
    assert spread(x[0, :1]).shape == (4, 3)


@needs_kernels
def test_several_threads_give_the_same_bits() -> None:
    cell = ScaleFire(0.5, 0.3, levels=LEVELS["mixed:8"])
    x = torch.randn(3, 100_003, generator=torch.Generator().manual_seed(5))
    with threads(2):
        fused = cell.fused(x, decoded=True)
    assert fused is not None and same(fused, plain(cell, x, decoded=True))


@needs_kernels
def test_transformations_see_torch_operations() -> None:
    """What traces, differentiates or maps a neuron must find the plain form, or it would record a constant."""
    cell, x, other = ScaleFire(0.5, 0.3, levels=LEVELS["linear"]), inputs()[:8], inputs()[8:16]
    with pytest.warns(FutureWarning, match="trace"):
        traced = torch.jit.trace(cell, x)
    for program in (traced, make_fx(cell)(x), torch.func.vmap(cell), torch.func.functionalize(cell)):
        assert torch.equal(program(other), cell(other))
    _, tangent = torch.func.jvp(cell, (x,), (torch.ones_like(x),))
    assert tangent.shape == x.shape
    loss = cell(x.clone().requires_grad_()).sum()
    assert loss.requires_grad
    with torch.no_grad():
        assert cell.fused(x.clone().requires_grad_(), decoded=True) is not None


@pytest.mark.processes
@pytest.mark.parametrize("compiler", ["false", "missing-compiler"])
def test_without_a_compiler_the_plain_form_runs(tmp_path: Path, compiler: str) -> None:
    script = (
        "import torch; from onespike import kernels; from onespike.neurons import ScaleFire\n"
        "print(ScaleFire(0.5, 0.25, levels=(1, 2, 3))(torch.tensor([-1.0, 0.2, 0.8])).tolist())\n"
        "print(kernels.note())"
    )
    settings = {"PATH": "", "CC": compiler, "XDG_CACHE_HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | settings, capture_output=True, text=True, check=True
    )
    values, note = run.stdout.splitlines()
    assert values == "[-0.75, 0.0, 1.0]"
    assert note.startswith("plain (") and run.stderr == ""


@needs_kernels
def test_kernels_can_be_switched_off_and_say_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(native.SWITCH, "plain")
    native._attempt.cache_clear()
    try:
        with caplog.at_level(logging.INFO, "onespike"):
            assert ScaleFire(0.5, levels=(1,)).fused(torch.ones(3), decoded=True) is None
        assert native.note() == "plain (ONESPIKE_KERNELS=plain)"
        assert "neurons run in their plain form" in caplog.text
    finally:
        native._attempt.cache_clear()
