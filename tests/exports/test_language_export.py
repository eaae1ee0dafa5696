"""A language model with its inputs by name: tokens, rotary positions, a causal mask."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

import onespike

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
SCRIPT = Path(__file__).parents[2] / "examples" / "replay_integers.py"


def test_a_llama_on_integers_and_in_onnx(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, initializer_range=0.5, use_cache=False, max_position_embeddings=16,
    )  # fmt: skip
    batch = {"input_ids": torch.randint(0, 50, (2, 7)), "use_cache": False}
    shorter = {"input_ids": torch.randint(0, 50, (3, 5)), "use_cache": False}
    snn = onespike.spike(transformers.LlamaForCausalLM(config).eval(), [batch])
    done = onespike.export(snn, "integers", tmp_path / "a", [batch, shorter])
    assert done.comparison.inputs == 5 and done.notes == ()  # any batch, any number of tokens
    assert done.comparison.active > 100 and done.comparison.differ <= done.comparison.counts // 500
    compared, differ, _ = runpy.run_path(str(SCRIPT))["replay"](tmp_path / "a")
    assert compared > 1000 and differ == 0
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'onespike[onnx]'")
    done = onespike.export(snn, "onnx", tmp_path / "a.onnx", [batch, shorter])
    assert done.comparison.active > 100 and done.comparison.differ <= done.comparison.counts // 500


def test_an_encoder_with_padded_texts_in_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'onespike[onnx]'")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        initializer_range=0.5, max_position_embeddings=16,
    )  # fmt: skip
    mask = torch.ones(4, 7, dtype=torch.long)
    mask[1, 5:] = 0
    batch = {"input_ids": torch.randint(0, 50, (4, 7)), "attention_mask": mask}
    shorter = {name: value[:3, :5] for name, value in batch.items()}
    snn = onespike.spike(transformers.BertModel(config).eval(), [batch])
    done = onespike.export(snn, "onnx", tmp_path / "a.onnx", [batch, shorter])
    assert done.comparison.inputs == 7 and done.comparison.active > 100 and done.notes == ()
    assert done.comparison.differ <= done.comparison.counts // 500
