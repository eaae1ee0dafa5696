"""Networks that read text: their tokenizer, their windows or texts, and the pooling of an encoder's output."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onespike.adapters.base import LoadedModel, Source
from onespike.errors import LoadError, UsageError
from onespike.tasks import Embedding, Language

LENGTH, SENTENCE = 512, 256
"""Default limit of tokens per window, and per embedded text."""


class Tokens:
    """A tokenizer of transformers as a task needs it."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        self.tokenizer, self.size = tokenizer, size

    def encode(self, text: str) -> tuple[list[int], list[int] | None]:
        """Return tokens, with those that open a text, and where each begins."""
        fast = bool(self.tokenizer.is_fast)
        found = self.tokenizer(text, return_offsets_mapping=fast, return_attention_mask=False, verbose=False)
        starts = [start for start, _ in found["offset_mapping"]] if fast else None
        return list(found["input_ids"]), starts

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


def fitting(spec: str, tokenizer: Any, model: Any) -> Tokens:
    """Return the tokenizer of a network, if the network knows its tokens."""
    size = int(model.get_input_embeddings().num_embeddings)
    if len(tokenizer) > size:
        raise LoadError(
            f"{spec}: its tokenizer has {len(tokenizer)} tokens, and the network knows {size}. "
            "Put the tokenizer that the network was trained with into the folder."
        )
    return Tokens(tokenizer, size)


def context_of(config: Any, tokenizer: Any, model: nn.Module) -> int:
    """Return the longest input of a network, as far as its configuration and its tokenizer state it."""
    names = ("max_position_embeddings", "n_positions", "seq_length")
    known = [int(getattr(config, name)) for name in names if getattr(config, name, None)]
    # positions of RoBERTa and related networks begin after the number of the padding token
    known += [
        module.num_embeddings - module.padding_idx - 1
        for name, module in model.named_modules()
        if name.endswith("position_embeddings")
        and isinstance(module, nn.Embedding)
        and module.padding_idx is not None
    ]
    return min([*known, int(tokenizer.model_max_length)])


def checked(spec: str, length: int | None, context: int, usual: int) -> int:
    """Return the requested number of tokens, if the network can take so many."""
    if length is not None and not 2 <= length <= context:
        raise UsageError(f"--length must be from 2 to {context}, the context of {spec}, not {length}.")
    return min(context, usual) if length is None else length


def causal(
    spec: str, source: Source, config: Any, tokenizer: Any, model: Any, length: int | None = None
) -> LoadedModel:
    """Return a network that writes, fed with windows of a text."""
    tokens = fitting(spec, tokenizer, model)
    context = context_of(config, tokenizer, model)
    length = checked(spec, length, context, LENGTH)

    def save_configuration(folder: Path) -> None:
        for part in (config, tokenizer, model.generation_config):
            part.save_pretrained(folder)

    return LoadedModel(
        model=model,
        spec=spec,
        transform=_as_it_is,
        preprocessing=f"its own tokenizer, windows of {length} tokens",
        weights=source.describe(),
        attention=config._attn_implementation,
        class_names=None,
        save_configuration=save_configuration,
        task=Language(tokens, length, context),
        collate=windows,
        length=length,
        of_length=partial(causal, spec, source, config, tokenizer, model),
    )


def encoder(
    spec: str,
    source: Source,
    config: Any,
    tokenizer: Any,
    model: Any,
    first: bool,
    length: int | None = None,
) -> LoadedModel:
    """Return a network that embeds texts."""
    pooled = model if isinstance(model, Pooled) else Pooled(model, first)
    fitting(spec, tokenizer, pooled.encoder)
    length = checked(spec, length, context_of(config, tokenizer, pooled.encoder), SENTENCE)

    def save_configuration(folder: Path) -> None:
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / POOLING).parent.mkdir(exist_ok=True)
        (folder / POOLING).write_text(json.dumps({FIRST: first}), encoding="utf-8")

    return LoadedModel(
        model=pooled,
        spec=spec,
        transform=_as_it_is,
        preprocessing=f"its own tokenizer, texts of at most {length} tokens",
        weights=source.describe(),
        attention=config._attn_implementation,
        class_names=None,
        save_configuration=save_configuration,
        task=Embedding(length),
        collate=padded(tokenizer, pooled.encoder, length),
        length=length,
        of_length=partial(encoder, spec, source, config, tokenizer, pooled, first),
    )


POOLING, FIRST = Path("1_Pooling") / "config.json", "pooling_mode_cls_token"
"""The file in which sentence-transformers states the pooling, and its word for the first state."""


def takes_first(folder: Path) -> bool:
    """Return whether a folder of sentence-transformers takes the first state of a text instead of the mean."""
    file = folder / POOLING
    try:
        return file.is_file() and bool(json.loads(file.read_text(encoding="utf-8")).get(FIRST))
    except (OSError, ValueError, AttributeError) as error:
        raise LoadError(f"{file}: it does not say how states are pooled. Correct or remove it.") from error


def padded(tokenizer: Any, model: nn.Module, length: int) -> Callable[[list[Any]], dict[str, Tensor]]:
    """Return a collate function: texts of several lengths as one batch, with a padding mask."""
    known = inspect.signature(type(model).forward).parameters

    def collate(texts: list[str]) -> dict[str, Tensor]:
        found = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
        return {name: value for name, value in found.items() if name in known}

    return collate


def windows(ids: list[Tensor]) -> dict[str, Any]:
    """Return windows of one length as one batch; nothing is generated, so nothing is cached."""
    return {"input_ids": torch.stack(ids), "use_cache": False}


def _as_it_is(read: Any) -> Any:
    return read
