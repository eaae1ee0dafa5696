"""Merged tokens: what merging keeps, that energy stays that of the original, and networks that refuse it."""

from __future__ import annotations

import copy

import pytest
import torch
from small_networks import ALL, attention, convolutional, ready, start, tokens

from onespike import evaluate, export, load, metered, optimize, revert_, spike
from onespike.conversion.merging import blocks_of, merge, merging
from onespike.energy.metering import counted
from onespike.errors import UsageError
from onespike.passes import chain
from onespike.passes import merge as merge_pass
from onespike.passes.budget import spending
from onespike.sites import Visit, visiting

PASSES = ("merge", *ALL, "correct", "refit")


def through(model, inputs, pairs):
    with torch.no_grad(), merging(model, pairs), visiting(model, Visit(lambda operand, x: x)):
        return model(inputs)


def test_merging_keeps_sums_order_and_the_first_token():
    torch.manual_seed(0)
    x, sizes = torch.randn(3, 11, 4), torch.randint(1, 4, (3, 11)).float()
    for first in (1, 2):
        fewer, larger = merge(x, sizes, 3, first)
        assert fewer.shape == (3, 8, 4) and torch.allclose(fewer[:, 0], x[:, 0])
        assert torch.allclose((fewer * larger[..., None]).sum(1), (x * sizes[..., None]).sum(1), atol=1e-5)
        assert torch.equal(larger.sum(1), sizes.sum(1)) and torch.equal(larger[:, 0], sizes[:, 0])
    x[0, 6] = x[0, 5] * 3  # the most similar pair becomes one, between its neighbors
    fewer, larger = merge(x, None, 1, 1)
    assert torch.allclose(fewer[0], torch.cat((x[0, :5], x[0, 5:6] * 2, x[0, 7:])))
    assert larger[0].tolist() == [1, 1, 1, 1, 1, 2, 1, 1, 1, 1]


def test_equal_tokens_merge_without_a_trace():
    """Two equal tokens are one that counts twice: attention adds the logarithm of sizes."""
    model, x = attention(), tokens(4)[0]
    x[:, 1] = x[:, 0]
    with torch.no_grad():
        expected = model(x)
    assert torch.allclose(through(model, x, {"blocks.0": 1}), expected, atol=1e-5)
    x[:, 1] += 1
    assert not torch.allclose(through(model, x, {"blocks.0": 1}), model(x), atol=1e-3)
    assert torch.equal(model(x), attention()(x))  # nothing is left of it


def test_energy_is_a_ratio_of_the_network_that_merges_nothing():
    state, context = ready(budget=0.15)
    merged = chain(state, context, ("merge", *ALL))
    assert merged.thresholds.merging.pairs == {"blocks.0": 1}
    assert merged.thresholds.macs == pytest.approx(state.thresholds.macs)
    assert spending(merged, context) == pytest.approx(0.15, rel=0.011)
    snn = merged.network(context.model)
    macs = counted(state.network(context.model), context.inputs[0]).macs
    ledger = counted(snn, context.inputs[0])
    assert ledger.macs == pytest.approx(macs)
    made = sum(row.macs for row in ledger.products().values()) + sum(ledger.unruled.values())
    assert macs - made == pytest.approx(ledger.merged) and ledger.merged > 0
    assert ledger.unruled["blocks.0", "weighted_sum"] == ledger.inputs * 4 * 16  # four pairs are compared
    # what was measured of a network is not used for another
    again = chain(state, context, ALL)
    assert again.thresholds.merging is None and spending(again, context) == pytest.approx(0.15, rel=0.011)


def test_a_merging_network_is_saved_optimized_reverted_and_evaluated(tmp_path):
    model, inputs = attention(), tokens(48)
    snn = spike(model, inputs, "fast", passes=PASSES, budget=0.2, energy="counts", max_drop=None)
    x = inputs[0]
    with torch.no_grad():
        expected = snn(x)
        snn.save_pretrained(tmp_path / "run")
        assert torch.equal(load(tmp_path / "run", attention()).snn(x), expected)
        assert torch.equal(copy.deepcopy(snn)(x), expected)
        assert torch.equal(revert_(copy.deepcopy(snn))(x), model(x))
        assert (optimize(snn)(x) - expected).abs().max() < 0.2 * expected.abs().max()
    with metered(snn) as ledger:
        snn(x)
    assert ledger.ratio("counts") == pytest.approx(0.2, rel=0.1)
    result = evaluate(model, snn, [(x, torch.zeros(len(x), dtype=torch.int64))])
    logits = through(model, x, {"blocks.0": 1}).double().log_softmax(-1)
    original = model(x).double().log_softmax(-1).detach()
    divergence = float((original.exp() * (original - logits)).sum(-1).mean())
    assert result.to_dict()["merged"]["kl"] == pytest.approx(divergence, rel=1e-3)


@pytest.mark.parametrize("name", ["pt2", "integers"])
def test_an_exported_network_merges_the_same_tokens(name, tmp_path):
    model, inputs = attention(), tokens(48)
    snn = spike(model, inputs, "fast", passes=("merge", "nearest", "allocate"), budget=0.2, max_drop=None)
    out = tmp_path / ("network.pt2" if name == "pt2" else "network")
    comparison = export(
        snn, name, out, inputs[0].split(4)
    ).comparison  # the network fixes the size of a batch
    assert not comparison.answers_differ and comparison.origins < 10  # ties between levels
    assert comparison.output_difference < 1e-5


def test_blocks_are_found_by_their_attention():
    assert blocks_of([f"encoder.layer.{i}.attention.attention" for i in range(3)]) == [
        "encoder.layer.0",
        "encoder.layer.1",
    ]
    assert blocks_of(["attn"]) == [] and blocks_of([]) == []
    assert blocks_of(["layers.0.self", "layers.0.cross", "layers.1.self"]) == [
        "layers.0.self",
        "layers.0.cross",
    ]


def test_vision_transformers_of_two_libraries_merge():
    timm, transformers = pytest.importorskip("timm"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 4}
    networks = {"blocks.0": timm.models.VisionTransformer(**shape).eval()}
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32
    )  # fmt: skip
    networks["layers.0"] = transformers.ViTForImageClassification(config).eval()
    for first, model in networks.items():
        inputs = list(torch.randn(8, 3, 32, 32).split(4))
        state, context = start(model, inputs)
        merged = merge_pass.merge(state, context)
        pairs = merged.thresholds.merging.pairs
        assert len(pairs) == 2 and next(iter(pairs)).endswith(first)
        lengths = [t.shape[-1] for t in merged.thresholds.values() if t.role == "softmax"]
        assert lengths == [17, 16, 15]


class Causal(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = attention()
        for block in self.inner.blocks:
            block.forward = self.masked(block)

    def masked(self, block):
        def forward(x):
            q, k, v = block.qkv(block.norm1(x)).unflatten(-1, (3, 2, -1)).movedim(2, 0).transpose(2, 3)
            heads = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + block.proj(heads.transpose(1, 2).flatten(2))

        return forward

    def forward(self, x):
        return self.inner.head(self.inner.blocks(self.inner.embed(x)).mean(1))


def test_networks_whose_tokens_are_no_set_are_refused():
    generator = torch.Generator().manual_seed(0)
    images = list(torch.randn(8, 2, 4, 4, generator=generator).split(4))
    for model, inputs, reason in (
        (convolutional(), images, "no blocks"),
        (Causal().eval(), tokens(16), "mask"),
    ):
        with pytest.raises(UsageError, match=reason):
            chain(*start(model, inputs, budget=0.2), ("merge", "nearest"))
        assert all("_merging" not in str(vars(module)) for module in model.modules())
