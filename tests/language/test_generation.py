"""A converted network writes: prefill and decode apart, with and without a cache, in batches padded on the left."""

from __future__ import annotations

import pytest
import torch

import onespike
from language_folders import llama_network
from onespike.evaluation.generation import write


@pytest.fixture(scope="module")
def networks():
    model = llama_network(eos_token_id=None)
    texts = torch.randint(2, 32, (4, 12))
    thresholds = onespike.calibrate(model, [{"input_ids": texts, "use_cache": False}])
    return onespike.convert(model, thresholds, onespike.Recipe(scale=0.1)), texts


def prompt(ids):
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_every_forward_is_counted_by_itself(networks, cache):
    snn, texts = networks
    written = write(snn, prompt(texts[:1, :5]), 4, cache=cache)
    assert written.ids.shape == (1, 9)
    assert [spent.tokens for spent in written.forwards] == [5, 1, 1, 1]
    assert written.decode.tokens == 3 and written.prefill.spikes > written.forwards[1].spikes > 0
    costs = [spent.original_pj for spent in written.forwards[1:]]
    # each token sees one key more, also in a cache of fixed size
    assert costs == sorted(costs) and costs[0] < costs[-1]
    assert not any(module.visitor for module in snn.modules() if hasattr(module, "visitor"))


def test_the_text_is_that_of_the_network_itself(networks):
    snn, texts = networks
    batch = prompt(texts[:1, :5])
    expected = snn.generate(**batch, max_new_tokens=4, do_sample=False)
    assert torch.equal(write(snn, batch, 4).ids, expected)
    drawn = [write(snn, batch, 4, temperature=2.0, seed=seed).ids for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])


def test_padding_costs_nothing(networks):
    """Two prompts in one batch cost what they cost one by one, but for spikes that rounding moves."""
    snn, texts = networks
    ids = texts[:2, :6].clone()
    mask = torch.ones_like(ids)
    ids[0, :3], mask[0, :3] = 0, 0
    both = write(snn, {"input_ids": ids, "attention_mask": mask}, 1).prefill
    alone = [write(snn, prompt(part), 1).prefill for part in (ids[:1, 3:], ids[1:])]
    assert both.tokens == sum(spent.tokens for spent in alone) == 9
    assert both.original_pj == pytest.approx(sum(spent.original_pj for spent in alone), rel=1e-9)
    assert both.energy_pj == pytest.approx(sum(spent.energy_pj for spent in alone), rel=0.05)
