"""Attention on integers: the products of spikes are exact, and results depend on nothing but the input."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onespike
from contract.networks import Layers
from onespike import kernels
from onespike.passes.layout import digit_levels
from onespike.spikes.levels import mixed_levels

pytestmark = pytest.mark.skipif(kernels.word_path() is None, reason="no 16-bit products here")
needs_kernel = pytest.mark.skipif(
    not kernels.is_fast(), reason="the kernel is for processors with AVX2, and a compiler"
)
HEADS, WIDTH, TOKENS = 3, 24, 37
DIGITS = ",".join(map(str, digit_levels(3, 1024)))
"""Levels as the default recipe has them: dense at first, and far apart at the end."""
X = torch.randn(6, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))


def attention(self: Layers, x: Tensor) -> Tensor:
    """One block of a causal or full transformer."""
    q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(3 * q, 3 * k, v, is_causal=self.causal)
    return x + self.out(mixed.transpose(1, 2).flatten(2))


def converted(causal: bool = False, constants: bool = False, far: int = 0, **recipe: object) -> nn.Module:
    torch.manual_seed(0)
    layers = {"norm": nn.LayerNorm(WIDTH), "qkv": nn.Linear(WIDTH, 3 * WIDTH), "out": nn.Linear(WIDTH, WIDTH)}
    model, made = Layers(attention, causal=causal, **layers).eval(), onespike.Recipe(io="spiking", **recipe)
    actual = onespike.calibrate(model, [X], made)
    if constants:
        generator = torch.Generator().manual_seed(2)
        entries = dict(actual.entries)
        for role, (center, step, gain) in {
            "matmul0_lhs": ((HEADS, 1, 8), (HEADS, 1, 1), (TOKENS, 1)),
            "matmul0_rhs": ((HEADS, 8, 1), (HEADS, 1, 1), (TOKENS,)),
            "matmul1_lhs": (None, (HEADS, 1, 1), (TOKENS, 1)),
            "matmul1_rhs": ((HEADS, 1, 8), (HEADS, 1, 8), (TOKENS, 1)),
        }.items():
            site = onespike.Site.parse(f":{role}")
            old = entries[site]
            steps = old.positive * (0.5 + torch.rand(step, generator=generator))
            changes = {
                "positive": steps,
                "gain": 2.0 ** torch.randint(-1, 2 + far, gain, generator=generator),
            }
            if center is not None:
                middle = torch.randn(center, generator=generator) * 0.3
                changes |= {"negative": steps.clone(), "center": middle, "offset": middle * 1.1}
            entries[site] = dataclasses.replace(old, **changes)
        actual = dataclasses.replace(actual, entries=entries)
    return onespike.convert(model, actual, made)


def simulated(network: nn.Module, monkeypatch: pytest.MonkeyPatch, x: Tensor) -> Tensor:
    """The same network with attention of values in float."""
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "word_path", lambda: None)
        return network(x)


@needs_kernel
@pytest.mark.parametrize(
    "recipe",
    [
        {}, {"constants": True}, {"causal": True}, {"causal": True, "constants": True}, {"softmax": "head"},
        {"constants": True, "far": 5, "levels": DIGITS, "rounding": "nearest"},  # of one token in 64 times the steps of another
    ],
)  # fmt: skip
def test_integer_attention_equals_attention_of_values(recipe: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    snn = converted(**recipe)
    fast = onespike.optimize(snn, integer_units=True)
    with torch.inference_mode():
        actual = fast(X)
        [form] = [m for name, m in fast.named_modules() if name.startswith("integer_matmul")]
        assert form._ready[1] is not None  # it has run
        expected = simulated(fast, monkeypatch, X)
    # Products in float round otherwise, and differently on every processor: a probability may fire the level
    # beside, which moves one row of 222. What is wrong moves them all.
    moved = ((actual - expected).abs() > 1e-3 * expected.abs().max()).any(-1)
    assert moved.float().mean() < 0.1
    assert (actual - expected).norm() < 5e-3 * expected.norm()


def test_results_depend_neither_on_batch_nor_threads_nor_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = onespike.optimize(converted(constants=True, far=5, levels=DIGITS), integer_units=True)
    results = []
    with torch.inference_mode():
        for path in [path for path in kernels.paths() if path.bytes == 2]:
            monkeypatch.setattr(kernels, "word_path", lambda path=path: path)
            for threads in (1, 2, 3):
                monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
                results += [fast(X), torch.cat([fast(x) for x in X.split(1)])]
    assert all(torch.equal(result, results[0]) for result in results)


def test_nan_shows_where_it_reaches() -> None:
    fast = onespike.optimize(converted(causal=True), integer_units=True)
    x = X.clone()
    x[2, 5] = torch.nan
    with torch.inference_mode():
        actual = fast(x).isnan()
    assert actual[2, 5:].all() and not actual[:2].any() and not actual[3:].any()


@needs_kernel
def test_products_of_counts_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of one key each fire the same probability, so that the result is v's own value, to the bit."""
    levels = mixed_levels(8)
    neurons = [
        onespike.neurons.ScaleFire(0.3, 0.21, levels=levels),
        onespike.neurons.ScaleFire(0.2, 0.2, levels=levels),
        onespike.neurons.ScaleFire(1 / 263, levels=levels),
        onespike.neurons.ScaleFire(0.25, 0.125, levels=levels),
    ]
    form = onespike.deploy.attention.IntegerAttention(neurons[0], neurons[1], neurons[3])
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 3, 1, 8, generator=generator) * 9 for _ in range(3))
    with torch.inference_mode():
        actual = form(tuple(neurons), (q, k.transpose(-2, -1), v), None)
        counts = neurons[3].counts(v)
        units = 2 * counts.clamp(min=0) + counts.clamp(max=0)
        assert torch.equal(actual, (263 * units) * 0.125 * neurons[2].code().row_steps())
