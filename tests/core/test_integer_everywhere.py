"""Every preset and every pass runs on integers, or is refused by name."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import onespike
from contract.networks import converted
from language_folders import llama_network
from onespike import kernels
from onespike.deploy.integer import optimize_
from onespike.passes import PASSES
from onespike.presets import PRESETS
from passes.small_networks import attention, convolutional, tokens

pytestmark = pytest.mark.skipif(kernels.best_path() is None, reason="no integer units here")
PICTURES = list(torch.randn(48, 2, 4, 4, generator=torch.Generator().manual_seed(2)).split(16))
CHAINS = [tuple(dict.fromkeys((*PASSES[name].needs, name))) for name in PASSES]
AT_ONCE = [name for name in PRESETS if onespike.preset(name).steps == 1]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning of two steps: where it ends is tested elsewhere."""
    monkeypatch.setattr("onespike.passes.tune.STEPS", 2)


def check(model: nn.Module, batches: list[Tensor], recipe: onespike.Recipe) -> None:
    """All weighted products are integers, each has the bits of its definition, and a result does not depend on its batch."""
    fast = copy.deepcopy(onespike.spike(model, batches, recipe))
    done = optimize_(fast, integer_units=True)
    assert done.integer and not done.simulated, done
    seen: list[tuple[nn.Module, tuple[Tensor, nn.Module], Tensor]] = []
    for module in fast.modules():
        if hasattr(module, "plain") and hasattr(module, "bias") and hasattr(module, "times_up"):
            module.register_forward_hook(lambda form, inputs, value: seen.append((form, inputs, value)))
    x = batches[0]
    with torch.inference_mode():
        whole = fast(x)
        calls = list(seen)
        for form, (operand, neuron), value in calls:
            assert torch.equal(value, form.plain(operand, neuron)), form
        one_by_one = torch.cat([fast(one) for one in x.split(1)])
    if recipe.neuron == "mean":  # its attention stays in floats
        assert calls and torch.allclose(whole, one_by_one, atol=1e-5)
    else:
        assert calls and torch.equal(whole, one_by_one)


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain[-1])
def test_every_pass(chain: tuple[str, ...]) -> None:
    check(attention(), tokens(), onespike.Recipe(passes=chain, io="spiking"))


@pytest.mark.parametrize("name", AT_ONCE)
def test_every_preset_of_one_step(name: str) -> None:
    check(attention(), tokens(), onespike.preset(name, io="spiking"))
    if not onespike.preset(name).passes and not name.startswith("paper"):  # those have another λ
        check(convolutional(), PICTURES, onespike.preset(name, io="spiking"))


def test_a_language_model_decodes_what_it_reads() -> None:
    """With cached keys and values, word by word, and alone or in a batch: the same bits."""
    pytest.importorskip("transformers")
    words = torch.randint(0, 32, (8, 12), generator=torch.Generator().manual_seed(1))
    fast = converted(llama_network(), words, onespike.Recipe(io="spiking"))
    assert not optimize_(fast, integer_units=True).simulated
    with torch.inference_mode():
        whole, past, parts = fast(words[:2]).logits, None, []
        assert torch.equal(whole[:1], fast(words[:1]).logits)
        for word in words[:2].split(1, dim=1):
            out = fast(word, past_key_values=past, use_cache=True)
            past = out.past_key_values
            parts.append(out.logits)
    assert torch.equal(torch.cat(parts, 1), whole)
