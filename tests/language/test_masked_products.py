"""Products that a mask hides are not counted: the causal half once, padded keys never."""

from __future__ import annotations

import pytest
import torch

import onespike
from contract.networks import Attention, converted, sequences
from language_folders import llama_network
from onespike.conversion.firing import named_neurons
from onespike.energy.metering import metered
from onespike.neurons import Neuron
from onespike.sites import attention


def spikes(snn, x, key):
    """|y| at one site of the network."""
    found = []
    neuron = next(n for site, n in named_neurons(snn) if site.key == key and isinstance(n, Neuron))
    handle = neuron.register_forward_pre_hook(lambda m, args: found.append(m.counts(args[0]).abs()))
    snn(x)
    handle.remove()
    return torch.cat(found, -2).double()  # of all blocks of rows


VISIBLE = torch.ones(6, 6, dtype=torch.bool).tril()
MASKS = {
    "causal": {"is_causal": True},
    "bool": {"attn_mask": VISIBLE},
    "float": {"attn_mask": torch.zeros(6, 6).masked_fill(~VISIBLE, -torch.inf)},
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("blocks", [False, True])
def test_the_causal_half_is_counted_once(kind, blocks, monkeypatch):
    if blocks:
        monkeypatch.setattr(attention, "BLOCK", 2 * 3 * 4 * 6)
    x = sequences(3)[:, :6]
    snn = converted(Attention(**MASKS[kind]).eval(), x, onespike.Recipe(scale=0.1))
    with torch.inference_mode():
        with metered(snn) as ledger:
            snn(x)
        rows = {site.key: row for site, row in ledger.sites.items() if site.operation == "matmul"}
        seen = 6 * 7 // 2
        assert rows["matmul0_lhs"].macs == rows["matmul1_lhs"].macs == 3 * 4 * seen * 4
        q, k, weights, v = (spikes(snn, x, f"matmul{n}_{role}") for n in (0, 1) for role in ("lhs", "rhs"))
        mask = VISIBLE.double()
        assert rows["matmul0_lhs"].additions["counts"] == float((q * mask.sum(-1, keepdim=True)).sum())
        assert rows["matmul0_rhs"].additions["counts"] == float((k * mask.sum(0)).sum())
        assert rows["matmul1_lhs"].additions["counts"] == float(4 * weights.sum())
        assert rows["matmul1_rhs"].additions["counts"] == float((v * mask.sum(0)[:, None]).sum())
        pairs = ((q @ k) * mask).sum(), (weights @ v).sum()
        assert rows["matmul0_lhs"].pairs["counts"] == pytest.approx(float(pairs[0]))
        assert rows["matmul1_lhs"].pairs["counts"] == pytest.approx(float(pairs[1]))


def test_a_cached_token_costs_what_it_costs_in_a_whole_text():
    """Prefill of seven tokens counts what prefill of six and one decoded token do."""
    model, ids = llama_network(), torch.randint(32, (1, 7))
    snn = onespike.convert(model, onespike.calibrate(model, [{"input_ids": ids, "use_cache": False}]))
    with torch.inference_mode():
        with metered(snn) as whole:
            snn(input_ids=ids)
        with metered(snn) as parts:
            cache = snn(input_ids=ids[:, :6], use_cache=True).past_key_values
            snn(input_ids=ids[:, 6:], past_key_values=cache)
    assert whole.macs == parts.macs
