"""Documents → tokens, packed into windows of one length, for a language model to read and be scored by."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from onespike.errors import DataError
from onespike.tasks.inputs import Item, Items
from onespike.tasks.text import Document, documents


class Tokenizer(Protocol):
    """Converts texts to numbers and back.

    Attributes:
        size: number of tokens that the network knows; token numbers are below it.
    """

    @property
    def size(self) -> int: ...

    def encode(self, text: str) -> tuple[list[int], list[int] | None]:
        """Return the tokens of a text, and the place in it where each begins, if known."""

    def decode(self, ids: Sequence[int], bare: bool = False) -> str:
        """Return the text of some tokens; `bare` leaves out those that open, end and pad a text."""


@dataclass(frozen=True)
class Window:
    """Tokens that a network reads at once, and what follows them.

    Attributes:
        ids: the tokens.
        following: the token after the last, which is the first of the next window; None at the end of the text.
        words: words that begin in the predicted part: all tokens but the first, and the one that follows.
        bytes: bytes of that part in UTF-8. Both are None if the text is unknown.
    """

    ids: Tensor
    following: int | None
    words: int | None
    bytes: int | None

    @property
    def targets(self) -> Tensor:
        """Return what each position should predict; one fewer than the positions at the end of the text."""
        last = [] if self.following is None else [self.following]
        return torch.cat([self.ids[1:], torch.tensor(last, dtype=self.ids.dtype)])


def pack(source: str, tokenizer: Tokenizer, length: int) -> Items:
    """Return the windows of a source: its documents in sequence, cut every `length` tokens; the rest is dropped."""
    tokens = [token for document in documents(source) for token in _tokens(document, tokenizer)]
    if len(tokens) < length:
        raise DataError(
            f"{source}: {len(tokens)} tokens, fewer than one window of {length}. "
            f"Give a longer text, or a shorter window: --length {max(len(tokens), 2)}."
        )
    counted = all(token.words is not None for token in tokens)
    everything, name = torch.tensor([token.id for token in tokens]), Path(source).name
    items = []
    for number, start in enumerate(range(0, len(tokens) - length + 1, length)):
        stop = start + length
        part, predicted = everything[start:stop], tokens[start + 1 : stop + 1]
        window = Window(
            part,
            tokens[stop].id if stop < len(tokens) else None,
            sum(token.words or 0 for token in predicted) if counted else None,
            sum(token.bytes or 0 for token in predicted) if counted else None,
        )
        digest = hashlib.sha256(part.numpy().tobytes()).hexdigest()
        items.append(Item(f"{name}[{start}:{stop}]", number, Path(source), number, None, window, digest))
    return Items(source, tuple(items))


def pack_short(source: str, tokenizer: Tokenizer, length: int) -> Items:
    """Return the windows of a source; a text shorter than one window is one short window."""
    tokens = sum(len(_tokens(document, tokenizer)) for document in documents(source))
    return pack(source, tokenizer, max(2, min(tokens, length)))


class _Token(NamedTuple):
    """A token, the words that begin in it, and its bytes; None where the text is unknown."""

    id: int
    words: int | None = None
    bytes: int | None = None


def _tokens(document: Document, tokenizer: Tokenizer) -> list[_Token]:
    ids, starts = (document.ids, None) if document.ids is not None else tokenizer.encode(document.text)
    wrong = next(((place, i) for place, i in enumerate(ids) if not 0 <= i < tokenizer.size), None)
    if wrong is not None:
        raise DataError(
            f"{document.name}: token {wrong[0]} has the number {wrong[1]}, and the network knows {tokenizer.size} tokens "
            f"(0 to {tokenizer.size - 1}). Use the tokenizer that the network was trained with."
        )
    if starts is None:
        return [_Token(token) for token in ids]
    words, sizes = _sums(document.text)
    edges = [0, *starts[1:], len(document.text)]
    return [
        _Token(token, words[stop] - words[start], sizes[stop] - sizes[start])
        for token, start, stop in zip(ids, edges, edges[1:], strict=False)
    ]


def _sums(text: str) -> tuple[list[int], list[int]]:
    """Return how many words begin, and how many bytes there are, before each place of a text.

    >>> _sums("a bé")
    ([0, 1, 1, 2, 2], [0, 1, 2, 3, 5])
    """
    begins = (not c.isspace() and (i == 0 or text[i - 1].isspace()) for i, c in enumerate(text))
    words = list(accumulate(map(int, begins), initial=0))
    return words, list(accumulate((len(c.encode("utf-8", "replace")) for c in text), initial=0))
