"""A converted network writes: prefill and decode apart, with and without a cache, in batches padded on the left."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

import onespike
from onespike.evaluation.generation import write


@pytest.fixture(scope="module")
def networks():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, initializer_range=0.3, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    texts = torch.randint(2, 32, (4, 12))
    thresholds = onespike.calibrate(model, [{"input_ids": texts, "use_cache": False}])
    return model, onespike.convert(model, thresholds, onespike.Recipe(scale=0.1)), texts


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_every_forward_is_counted_by_itself(networks, cache):
    _, snn, texts = networks
    batch = {"input_ids": texts[:1, :5], "attention_mask": torch.ones(1, 5, dtype=torch.long)}
    written = write(snn, batch, 4, cache=cache)
    assert written.ids.shape == (1, 9)
    assert [spent.tokens for spent in written.forwards] == [5, 1, 1, 1]
    assert written.decode.tokens == 3 and written.prefill.spikes > written.forwards[1].spikes > 0
    costs = [spent.original_pj for spent in written.forwards[1:]]
    assert (
        costs == sorted(costs) and costs[0] < costs[-1]
    )  # each token sees one key more, also in a cache of fixed size
    assert not any(module.visitor for module in snn.modules() if hasattr(module, "visitor"))


def test_the_text_is_that_of_the_network_itself(networks):
    _, snn, texts = networks
    batch = {"input_ids": texts[:1, :5], "attention_mask": torch.ones(1, 5, dtype=torch.long)}
    expected = snn.generate(**batch, max_new_tokens=4, do_sample=False)
    assert torch.equal(write(snn, batch, 4).ids, expected)
    drawn = [write(snn, batch, 4, temperature=2.0, seed=seed).ids for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])


def test_padding_costs_nothing(networks):
    """Two prompts in one batch cost what they cost one by one, but for spikes that rounding moves."""
    _, snn, texts = networks
    ids = texts[:2, :6].clone()
    mask = torch.ones_like(ids)
    ids[0, :3], mask[0, :3] = 0, 0
    both = write(snn, {"input_ids": ids, "attention_mask": mask}, 1).prefill
    alone = [
        write(snn, {"input_ids": part, "attention_mask": torch.ones_like(part)}, 1).prefill
        for part in (ids[:1, 3:], ids[1:])
    ]
    assert both.tokens == sum(spent.tokens for spent in alone) == 9
    assert both.original_pj == pytest.approx(sum(spent.original_pj for spent in alone), rel=1e-9)
    assert both.energy_pj == pytest.approx(sum(spent.energy_pj for spent in alone), rel=0.05)


def test_prefill_and_decode_of_the_original_are_the_same(networks):
    model, snn, texts = networks
    script = Path(__file__).parents[2] / "benchmarks/cache_agreement.py"
    cache_agreement = runpy.run_path(str(script))["cache_agreement"]
    found = cache_agreement(model, texts)
    assert (found.positions, found.agreement, found.identical) == (48, 1.0, 1.0)
    assert 0 <= cache_agreement(snn, texts[:1]).agreement <= 1
