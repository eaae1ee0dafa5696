"""Networks that write: with routers and caches, on integers at any length; prefill and decode apart, and in batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onespike
from contract.networks import Layers
from language_folders import llama_network
from onespike import kernels
from onespike.errors import OnespikeWarning
from onespike.evaluation.generation import write

transformers: Any = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, **SPECIAL,
}  # fmt: skip
PASSES = ("nearest", "positions", "center", "allocate")


def ids(texts: int, tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(3, 64, (texts, tokens), generator=torch.Generator().manual_seed(seed))


def texts() -> list[dict[str, Any]]:
    return [{"input_ids": ids(4, 12, seed), "use_cache": False} for seed in (1, 2)]


def mixtral() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
    return transformers.MixtralForCausalLM(config).eval()


def mamba2() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.Mamba2Config(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_heads=8, head_dim=8, state_size=8, n_groups=1,
        chunk_size=8, **SPECIAL,
    )  # fmt: skip
    return transformers.Mamba2ForCausalLM(config).eval()


def written(network: Any, **prompt: Tensor) -> Tensor:
    result: Tensor = network.generate(**prompt, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    return result


@pytest.mark.skipif(kernels.best_path() is None, reason="no integer units here")
def test_a_router_without_a_bias_runs_on_integers() -> None:
    snn = onespike.spike(mixtral(), texts(), "sformer")
    fast = onespike.optimize(snn)
    routers = [name for name, _ in fast.named_modules() if name.endswith("gate.integer_linear0_input")]
    assert len(routers) == 2
    # weights are rounded to 8 bits, and a token whose experts nearly tie may go to another one
    logits = [network(**texts()[0]).logits for network in (snn, fast)]
    assert torch.corrcoef(torch.stack([x.flatten() for x in logits]))[0, 1] > 0.9
    assert written(fast, input_ids=ids(2, 5)).shape == (2, 9)


@pytest.mark.skipif(kernels.best_path() is None, reason="no integer units here")
def test_a_bias_of_another_name_stays() -> None:
    torch.manual_seed(0)
    shifted = Layers(
        lambda self, x: nn.functional.linear(x, self.weight, self.shift),
        weight=nn.Parameter(torch.randn(3, 8)),
        shift=nn.Parameter(torch.full((3,), 9.0)),
    )
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), shifted, nn.ReLU(), nn.Linear(3, 2)).eval()
    snn = onespike.spike(model, [torch.randn(64, 4)], "sformer")
    inputs = torch.randn(16, 4)
    values = [network[:3](inputs) for network in (snn, onespike.optimize(snn, integer_units=True))]
    assert torch.allclose(*values, atol=0.1)  # 8 values of weights rounded to 1/127 of the largest


def test_products_of_decoding_alone_are_calibrated_too() -> None:
    model = mamba2()
    thresholds = onespike.calibrate(model, texts())
    decoding = [site for site, threshold in thresholds.items() if threshold.macs == 0]
    assert decoding and all(site.owner == "backbone.layers.0.mixer" for site in decoding)
    assert written(onespike.convert(model, thresholds), input_ids=ids(2, 5)).shape == (2, 9)
    with pytest.warns(OnespikeWarning, match="keep the thresholds of calibration") as caught:
        snn = onespike.spike(model, texts(), "sformer", passes=PASSES)
    assert all(str(site) in str(caught[0].message) for site in decoding)
    assert written(snn, input_ids=ids(2, 5)).shape == (2, 9)


def test_one_batch_twice_has_no_constant_operands_on_account_of_decoding() -> None:
    thresholds = onespike.calibrate(mamba2(), texts()[:1] * 2)
    assert "constant" not in {threshold.role for threshold in thresholds.values()}


def test_the_second_path_changes_nothing_where_it_has_the_same_products() -> None:
    class Silent(transformers.MixtralForCausalLM):  # type: ignore[misc,name-defined]
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            raise ValueError("no")

    model = mixtral()
    silent = Silent(model.config).eval()
    silent.load_state_dict(model.state_dict())
    one, other = (onespike.calibrate(network, texts()) for network in (model, silent))
    assert list(one) == list(other)
    assert all(torch.equal(one[site].positive, other[site].positive) for site in one)


def test_a_decoder_beside_an_encoder_writes_after_positions() -> None:
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=64, num_mel_bins=8, encoder_layers=1, encoder_attention_heads=2, decoder_layers=1,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, d_model=16, max_source_positions=20,
        max_target_positions=30, decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None, **SPECIAL,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval()
    sound = torch.randn(4, 8, 40, generator=torch.Generator().manual_seed(1))
    sound *= torch.logspace(-2, 2, 40)  # so that positions differ in effect
    batches = [{"input_features": sound + i, "decoder_input_ids": ids(4, 6 + i)} for i in range(2)]
    snn = onespike.spike(model, batches, "sformer", passes=PASSES)
    neurons = ((str(site), getattr(neuron, "gain", None)) for site, neuron in onespike.named_neurons(snn))
    gains = {site: gain.numel() for site, gain in neurons if gain is not None}
    assert any(number == 20 for site, number in gains.items() if "encoder.layers" in site)
    assert all(
        number == 1 for site, number in gains.items() if "decoder" in site and "encoder_attn" not in site
    )
    assert written(snn, input_features=sound[:2]).shape[0] == 2


def test_attention_with_a_sink_writes_after_center() -> None:
    torch.manual_seed(0)
    config = transformers.GptOssConfig(**SIZES, head_dim=8, num_local_experts=2, num_experts_per_tok=1)
    model = transformers.GptOssForCausalLM(config).eval()
    with pytest.warns(OnespikeWarning, match=r"self_attn:matmul1_lhs, .*self_attn:matmul1_rhs"):
        snn = onespike.spike(model, texts(), "sformer", passes=PASSES)
    assert written(snn, input_ids=ids(2, 5)).shape == (2, 9)


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
