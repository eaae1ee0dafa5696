"""Tiny networks that read text, as `save_pretrained` writes them, with a tokenizer made on the spot."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

WORDS = [
    "a", "b", "c", "d", "e", "once", "upon", "the", "time", "there", "was", "cat", "dog", "sat", "on", "mat", "ran", "red",
    "blue", "ball", ".", ",",
]  # fmt: skip


def sentence(seed: int, words: int) -> str:
    """Words in a random order, a line break after every seventh."""
    chosen = random.Random(seed).choices(WORDS, k=words)
    return "".join(word + ("\n" if place % 7 == 6 else " ") for place, word in enumerate(chosen))


def tokenizer(size: int | None = None, start: bool = True) -> Any:
    """One token for each word, `<s>` in front; more tokens than there are words if asked for."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<unk>", "<s>", "</s>", *WORDS]
    names += [f"more{i}" for i in range((size or len(names)) - len(names))]
    inner = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if start:
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", names.index("<s>"))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def llama_network(**changes: Any) -> Any:
    """A random Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    settings = dict(
        vocab_size=32, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=32, bos_token_id=2, eos_token_id=3, pad_token_id=0,
        initializer_range=0.3, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**(settings | changes))).eval()


def llama(path: Path, *, words: Any = None, **changes: Any) -> Path:
    """A random Llama that writes these words."""
    llama_network(**changes).save_pretrained(path)
    (tokenizer() if words is None else words).save_pretrained(path)
    return path


def bert(path: Path, **changes: Any) -> Path:
    """A random encoder of these words."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    settings = dict(
        vocab_size=32, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=32, pad_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    BertModel(BertConfig(**(settings | changes))).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def text(path: Path, seed: int, words: int) -> Path:
    path.write_text(sentence(seed, words), encoding="utf-8")
    return path
