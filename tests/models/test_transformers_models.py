"""transformers networks keep the contract, with fused and with eager attention."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import pytest
import torch
from families import Uncompiled, contract
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    ViTConfig,
)

import onespike
from contract.conversion_contract import ConversionContract, distance, images, nothing_hidden, run
from onespike.neurons import Neuron

VISION = dict(
    hidden_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=8,
    id2label={str(i): str(i) for i in range(7)},
)  # fmt: skip
TEXT = dict(vocab_size=50, use_cache=False, bos_token_id=1, eos_token_id=0, pad_token_id=0)
WIDTHS = dict(hidden_size=24, num_hidden_layers=1, intermediate_size=48, num_attention_heads=4)
GROUPED = dict(**TEXT, **WIDTHS, num_key_value_heads=2, max_position_embeddings=32)


def tokens(counts: tuple[int, ...] = (2, 3), length: int = 8, padded: bool = False) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    batches = []
    for n in counts:
        mask = torch.ones(n, length, dtype=torch.long)
        if padded:
            mask[0, :3] = 0
        ids = torch.randint(1, 50, (n, length), generator=generator)
        batches.append({"input_ids": ids, "attention_mask": mask})
    return batches


def both(auto: Any, config: Any, batches: Any, **facts: Any) -> list[type[ConversionContract]]:
    """The contract with fused and with eager attention, which multiplies first and hides then.

    As graphs, eager networks have nothing that BERT's and GPT-2's have not.
    """
    base = ConversionContract if isinstance(config, (BertConfig, GPT2Config)) else Uncompiled
    fused, eager = (partial(auto.from_config, config, attn_implementation=kind) for kind in ("sdpa", "eager"))
    return [contract(fused, batches, **facts), contract(eager, batches, base, **{**facts, "masked": False})]


CLASSIFIER = ("classifier:linear0_input",)
LANGUAGE_HEAD = dict(masked=True, heads=("lm_head:linear0_input",))
IMAGES, PADDED = partial(images, 32), partial(tokens, padded=True)
TestViT, TestViTEager = both(  # query, key and value have a product each
    AutoModelForImageClassification, ViTConfig(**VISION, intermediate_size=48), IMAGES, heads=CLASSIFIER,
    inputs=("vit.embeddings.patch_embeddings.projection:conv0_input",), spiking=10, softmax=1,
)  # fmt: skip
LABELS = VISION["id2label"]
BERT = BertConfig(
    **WIDTHS | {"num_attention_heads": 2}, vocab_size=50, max_position_embeddings=16, id2label=LABELS
)
TestBert, TestBertEager = both(  # and the pooler
    AutoModelForSequenceClassification, BERT, PADDED, heads=CLASSIFIER, masked=True, spiking=11, softmax=1
)
GPT2 = GPT2Config(**TEXT, n_embd=24, n_layer=1, n_head=2, n_positions=32)
TestGPT2, TestGPT2Eager = both(  # each Conv1D multiplies by a weight in product form
    AutoModelForCausalLM, GPT2, PADDED, **LANGUAGE_HEAD, spiking=8, softmax=1, weights=4
)
TestLlama, TestLlamaEager = both(
    AutoModelForCausalLM, LlamaConfig(**GROUPED), PADDED, **LANGUAGE_HEAD, spiking=11, softmax=1
)
# A mixture of experts: two of four multiply each token, in grouped products.
MIXTRAL = MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2)
MIXTURE = both(AutoModelForCausalLM, MIXTRAL, PADDED, **LANGUAGE_HEAD, spiking=11, softmax=1, weights=2)
TestMixtral = MIXTURE[0]


def test_the_energy_of_experts_is_that_of_unit_weights():
    """The ledger's counts against the grouped products of the spikes themselves with weights that are all 1."""
    _, batches, snn = converted(TestMixtral)
    experts = snn.model.layers[0].mlp.experts
    expected: dict[str, float] = {}

    def grouped(a, b, **kwargs):
        key = f"matmul{len(expected)}_lhs"
        step = experts.neurons[key].code().units()
        spikes = (a.clamp(min=0) / step[0] + (-a).clamp(min=0) / step[1]).round()
        additions = torch._grouped_mm(spikes, torch.ones_like(b), offs=kwargs["offs"])
        expected[key] = float(additions.double().sum())
        return torch._grouped_mm(a, b, **kwargs)

    with torch.inference_mode(), onespike.metered(snn) as ledger:
        snn(**batches[0])
    found = {s.key: row for s, row in ledger.sites.items() if s.owner == "model.layers.0.mlp.experts"}
    rules = importlib.import_module("onespike.sites.rules")
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setitem(rules.RULES, torch._grouped_mm, partial(rules._grouped, grouped))
        snn(**batches[0])
    assert {key: found[key].additions["counts"] for key in expected} == expected and len(expected) == 2
    assert all(found[key].macs == found[key.replace("lhs", "rhs")].macs > 0 for key in expected)


LANGUAGE = [TestGPT2, TestGPT2Eager, TestLlama, TestLlamaEager]


def converted(contract: type[ConversionContract]) -> tuple[Any, list[dict[str, Any]], Any]:
    model, batches = contract.build()
    return model, batches, onespike.convert(model, onespike.calibrate(model, batches))


PAIRS = [
    (TestViT, TestViTEager), (TestBert, TestBertEager), (TestGPT2, TestGPT2Eager), (TestLlama, TestLlamaEager),
]  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
def test_both_attentions_have_the_same_sites(pair):
    # a row that is masked altogether gives zeros in one and a mean in the other
    batches = tokens() if pair[0] in LANGUAGE else None
    with nothing_hidden():  # eager attention multiplies first and hides then
        fused, unfused = (
            onespike.calibrate(model, batches or own) for model, own in (c.build() for c in pair)
        )
    assert {s: t.role for s, t in fused.items()} == {s: t.role for s, t in unfused.items()}
    assert fused.macs == unfused.macs
    for site, threshold in fused.items():
        # eager attention scales after the product of query and key, fused attention before it
        if site.key != "matmul0_lhs" or "attn.c_" in site.owner or "mlp.c_" in site.owner:
            torch.testing.assert_close(
                threshold.positive, unfused[site].positive, rtol=2e-3, atol=0, msg=str(site)
            )


@pytest.mark.parametrize("contract", LANGUAGE)
def test_left_padding_gives_no_nan_and_changes_nothing_else(contract):
    _, batches, snn = converted(contract)
    batch = batches[0]
    assert not batch["attention_mask"].all()
    output = run(snn, batch)
    assert output.isfinite().all()
    alone = {k: v[1:] for k, v in batch.items()}  # a row without padding does not see its neighbor's
    assert distance(run(snn, alone), output[1:]) < 0.02


@pytest.mark.parametrize("contract", LANGUAGE)
def test_generation(contract):
    _, batches, snn = converted(contract)
    batch = batches[0]
    settings = dict(max_new_tokens=5, min_new_tokens=5, do_sample=False)
    with onespike.metered(snn) as ledger:
        cached = snn.generate(**batch, **settings, use_cache=True)
    assert cached.shape == (2, 13)
    reached = {str(site) for site, row in ledger.sites.items() if row.active}
    assert reached == {str(s) for s, n in onespike.named_neurons(snn) if isinstance(n, Neuron)}
    visits = {str(site): row.visits for site, row in ledger.sites.items()}
    assert visits["lm_head:linear0_input"] == 5
    assert torch.equal(cached, snn.generate(**batch, **settings, use_cache=False))
    assert torch.equal(cached[:, :8], batch["input_ids"])


def test_a_converted_network_is_saved_by_its_library_and_by_torch(tmp_path):
    """λ is one number for all neurons, and files that refuse shared memory hold it nevertheless."""
    model, batches = TestViT.build()
    snn = onespike.spike(model, batches, "sformer", scale=0.2)
    expected = run(snn, batches[0])
    from safetensors.torch import load_file, save_file

    save_file(snn.state_dict(), tmp_path / "state.safetensors")
    torch.save(snn.state_dict(), tmp_path / "state.pt")
    as_pickle = torch.load(tmp_path / "state.pt", weights_only=True)
    for state in (load_file(tmp_path / "state.safetensors"), as_pickle):
        other = onespike.spike(model, [x * 2 for x in batches], "sformer", scale=0.3)
        assert not torch.equal(run(other, batches[0]), expected)
        other.load_state_dict(state)
        assert torch.equal(run(other, batches[0]), expected)
        onespike.set_scale_(other, 0.5)  # still one for all
        found = {n.scale for _, n in onespike.named_neurons(other) if getattr(n, "scale", None) is not None}
        assert len(found) == 1
    type(model).save_pretrained(snn, tmp_path / "saved")
    again = type(model).from_pretrained(tmp_path / "saved")  # the original network, which needs no neurons
    torch.testing.assert_close(run(again.eval(), batches[0]), run(model, batches[0]))
    snn.save_pretrained(tmp_path / "kept")
    pair = onespike.from_pretrained(tmp_path / "kept", again)  # both, by our own folder
    assert torch.equal(run(pair.snn, batches[0]), expected)
