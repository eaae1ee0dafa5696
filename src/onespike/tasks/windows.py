"""Documents → tokens, packed into windows of one length, for a language model to read and be scored by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from onespike.errors import DataError
from onespike.tasks.images import Item, Items
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
    ids, words, sizes, known = list[int](), list[int](), list[int](), True
    for document in documents(source):
        for token, started, size in _tokens(document, tokenizer):
            ids.append(token)
            words.append(started or 0)
            sizes.append(size or 0)
            known = known and started is not None
    if len(ids) < length:
        raise DataError(
            f"{source}: {len(ids)} tokens, fewer than one window of {length}. "
            f"Give a longer text, or a shorter window: --length {max(len(ids), 2)}."
        )
    everything, name = torch.tensor(ids), Path(source).name
    items = []
    for number, start in enumerate(range(0, len(ids) - length + 1, length)):
        stop = start + length
        part, predicted = everything[start:stop], slice(start + 1, stop + 1)
        window = Window(
            part,
            ids[stop] if stop < len(ids) else None,
            sum(words[predicted]) if known else None,
            sum(sizes[predicted]) if known else None,
        )
        digest = hashlib.sha256(part.numpy().tobytes()).hexdigest()
        items.append(Item(f"{name}[{start}:{stop}]", number, Path(source), number, None, window, digest))
    return Items(source, tuple(items))


def pack_short(source: str, tokenizer: Tokenizer, length: int) -> Items:
    """Return the windows of a source; a text shorter than one window is one short window."""
    tokens = sum(1 for document in documents(source) for _ in _tokens(document, tokenizer))
    return pack(source, tokenizer, max(2, min(tokens, length)))


def windows_of(items: Items) -> dict[int, Window]:
    """Return windows by number, which is the label that a batch brings."""
    return {int(item.label or 0): item.content for item in items}


def _tokens(document: Document, tokenizer: Tokenizer) -> Iterator[tuple[int, int | None, int | None]]:
    """Yield each token with the words that begin in it and its bytes; None where unknown."""
    if document.ids is not None:
        yield from ((token, None, None) for token in _checked(document, document.ids, tokenizer.size))
        return
    ids, starts = tokenizer.encode(document.text)
    _checked(document, ids, tokenizer.size)
    if starts is None:
        yield from ((token, None, None) for token in ids)
        return
    words, sizes = _sums(document.text)
    edges = [0, *starts[1:], len(document.text)]
    for token, start, stop in zip(ids, edges, edges[1:], strict=False):
        yield token, words[stop] - words[start], sizes[stop] - sizes[start]


def _sums(text: str) -> tuple[list[int], list[int]]:
    """Return how many words begin, and how many bytes there are, before each place of a text.

    >>> _sums("a bé")
    ([0, 1, 1, 2, 2], [0, 1, 2, 3, 5])
    """
    begins = (not c.isspace() and (i == 0 or text[i - 1].isspace()) for i, c in enumerate(text))
    words = list(accumulate(map(int, begins), initial=0))
    return words, list(accumulate((len(c.encode("utf-8", "replace")) for c in text), initial=0))


def _checked(document: Document, ids: Sequence[int], size: int) -> Sequence[int]:
    wrong = next(((place, i) for place, i in enumerate(ids) if not 0 <= i < size), None)
    if wrong is not None:
        raise DataError(
            f"{document.name}: token {wrong[0]} has the number {wrong[1]}, and the network knows {size} tokens "
            f"(0 to {size - 1}). Use the tokenizer that the network was trained with."
        )
    return ids
