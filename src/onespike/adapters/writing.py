"""Networks that read text: their tokenizer, their windows or texts, and the pooling of an encoder's output."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onespike.adapters.base import Reading
from onespike.errors import LoadError, UsageError
from onespike.tasks import Embedding, Language, Task

LENGTH, SENTENCE = 512, 256
"""Default limit of tokens per window, and per embedded text."""


class Tokens:
    """A tokenizer of transformers as a task needs it."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        self.tokenizer, self.size = tokenizer, size

    def encode(self, text: str) -> list[int]:
        """Return tokens, with those that open a text."""
        return list(self.tokenizer(text, return_attention_mask=False, verbose=False)["input_ids"])

    def decode(self, ids: Sequence[int], bare: bool = False) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=bare)
        return text


class Pooled(nn.Module):
    """An encoder whose last states are averaged over the tokens of each text, or whose first state is taken."""

    def __init__(self, encoder: nn.Module, first: bool = False) -> None:
        super().__init__()
        self.encoder, self.first = encoder, first

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **others: Tensor) -> Tensor:
        states: Tensor = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, **others
        ).last_hidden_state
        if self.first:
            return states[:, 0]
        real = attention_mask.unsqueeze(-1).to(states.dtype)
        pooled: Tensor = (states * real).sum(1) / real.sum(1).clamp(min=1)
        return pooled


def text_reader(
    spec: str, tokenizer: Any, model: Any, writes: bool
) -> Callable[[int | None], tuple[Reading, Task]]:
    """Return what makes reading and task for a number of tokens: windows of a text for a network that writes, else texts."""
    size = int(model.get_input_embeddings().num_embeddings)
    if len(tokenizer) > size:
        raise LoadError(
            f"{spec}: its tokenizer has {len(tokenizer)} tokens, and the network knows {size}. "
            "Put the tokenizer that the network was trained with into the folder."
        )
    context, arguments = _context(model, tokenizer), inspect.signature(type(model).forward).parameters

    def windows(ids: list[Tensor]) -> dict[str, Any]:
        return {"input_ids": torch.stack(ids), "use_cache": False}  # nothing is generated

    def of_length(length: int | None) -> tuple[Reading, Task]:
        if length is None:
            length = min(context, LENGTH if writes else SENTENCE)
        elif not 2 <= length <= context:
            raise UsageError(f"length= must be from 2 to {context}, the context of {spec}, not {length}.")

        def padded(texts: list[str]) -> dict[str, Any]:
            batch = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
            return {name: value for name, value in batch.items() if name in arguments}

        task: Task = Language(Tokens(tokenizer, size), length, context) if writes else Embedding()
        words = f"its own tokenizer, {'windows of' if writes else 'texts of at most'} {length} tokens"
        return Reading(lambda text: text, words, windows if writes else padded, length, of_length), task

    return of_length


def _context(model: Any, tokenizer: Any) -> int:
    """Return the longest input of a network, as far as its configuration and its tokenizer state it."""
    names = ("max_position_embeddings", "n_positions", "seq_length")
    limits = [int(limit) for name in names if (limit := getattr(model.config, name, None))]
    # positions of RoBERTa and related networks begin after the number of the padding token
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None) if isinstance(module, nn.Embedding) else None
        if name.endswith("position_embeddings") and padding is not None:
            limits.append(module.num_embeddings - padding - 1)
    return min([*limits, int(tokenizer.model_max_length)])


POOLING, FIRST = Path("1_Pooling") / "config.json", "pooling_mode_cls_token"
"""The file in which sentence-transformers states the pooling, and its word for the first state."""


def takes_first(folder: Path) -> bool:
    """Return whether a folder of sentence-transformers takes the first state of a text instead of the mean."""
    file = folder / POOLING
    try:
        return file.is_file() and bool(json.loads(file.read_text(encoding="utf-8")).get(FIRST))
    except (OSError, ValueError, AttributeError) as error:
        raise LoadError(f"{file}: it does not say how states are pooled. Correct or remove it.") from error
