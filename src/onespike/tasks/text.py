"""A text file, a folder of them, rows of JSON or a dataset → documents → tokens in windows of one length."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from onespike.errors import DataError, first_line, require
from onespike.tasks.inputs import Items

SUFFIXES = (".jsonl", ".md", ".raw", ".text", ".tsv", ".txt")
DATASETS = "datasets:"
BETWEEN = "\n\n"  # the separator between the rows of a dataset that form one text, as GPTQ joins WikiText


@dataclass(frozen=True)
class Document:
    """One text; for pairs also the other text and their rated similarity."""

    name: str
    text: str
    other: str | None = None
    score: float | None = None


def documents(source: str) -> list[Document]:
    """Return every document of a source, empty ones left out: one per file, per row of `.jsonl` and `.tsv`, or per dataset."""
    if source.startswith(DATASETS):
        every = [_dataset(source)]
    elif Path(source).is_dir():
        files = sorted(p for p in Path(source).rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        if not files:
            raise DataError(f"{source}: no text in it. Give files that end in {', '.join(SUFFIXES)}.")
        every = [document for file in files for document in _file(file)]
    else:
        every = _file(Path(source))
    filled = [document for document in every if document.text.strip()]
    if not filled:
        raise DataError(f"{source}: there is no text in it. Give a file with some.")
    return filled


def _file(path: Path) -> list[Document]:
    if path.exists() and not path.is_file():  # a device has no end, and a pipe may have no writer
        raise DataError(f"{path}: this is neither a file nor a folder. Write the text to a file.")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8. Give a text in UTF-8.") from error
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror}). Give a readable file.") from error
    read = {".jsonl": _json, ".tsv": _columns}.get(path.suffix.lower())
    if read is None:
        return [Document(path.name, text)]
    lines = ((f"{path.name}:{number}", line) for number, line in enumerate(text.splitlines(), 1))
    return [_row(name, read(name, line)) for name, line in lines if line.strip()]


def _json(name: str, line: str) -> Any:
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()  # half a character may be escaped in it
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: this row is not JSON ({error}). Correct it.") from error
    return row


def _columns(name: str, line: str) -> dict[str, str]:
    columns = line.split("\t")
    if len(columns) not in (2, 3):
        raise DataError(f"{name}: {len(columns)} columns. Give two texts and perhaps a score, tabs between.")
    return dict(zip(("sentence1", "sentence2", "score"), columns, strict=False))


def _row(name: str, row: Any) -> Document:
    match row:
        case {"text": str(text)}:
            return Document(name, text)
        case {"sentence1": str(first), "sentence2": str(second)}:
            if (score := row.get("score")) is None:
                return Document(name, first, second)
            with suppress(TypeError, ValueError, OverflowError):
                if math.isfinite(float(score)):
                    return Document(name, first, second, float(score))
            raise DataError(f"{name}: the score {score!r:.60} is not a number. Correct it.")
    forms = '{"text": …} or {"sentence1": …, "sentence2": …}'
    raise DataError(f"{name}: a row holds {forms}, and this one does not. Correct it.")


def _dataset(source: str) -> Document:
    """Read `datasets:NAME[,CONFIGURATION][@SPLIT]` by the library of that name, or a folder that its `save_to_disk` wrote."""
    datasets = require("datasets", "language", source)
    wanted, _, split = source.removeprefix(DATASETS).partition("@")
    name, _, configuration = wanted.partition(",")
    try:
        if Path(name).is_dir():
            stored = datasets.load_from_disk(name)
            rows = stored[split or "test"] if isinstance(stored, datasets.DatasetDict) else stored
        else:
            rows = datasets.load_dataset(name, configuration or None, split=split or "test")
        texts = rows["text"]
    except Exception as error:  # any exception of the library or the place it reads from
        raise DataError(
            f"{source}: the dataset cannot be read ({first_line(error)}). "
            "Name one with a column 'text', as datasets:NAME,CONFIGURATION@SPLIT, or a folder of save_to_disk."
        ) from error
    return Document(source, BETWEEN.join(texts))


class Tokenizer(Protocol):
    """Converts texts to numbers and back; `decode` with `bare` leaves out tokens that open, end and pad a text."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int], bare: bool = False) -> str: ...


def pack(source: str, tokenizer: Tokenizer, length: int, short: bool = False) -> Items:
    """Return the windows of a source: its documents in sequence, cut every `length` tokens; the rest is dropped."""
    tokens = [token for document in documents(source) for token in tokenizer.encode(document.text)]
    length = max(2, min(len(tokens), length)) if short else length  # of a short text one short window
    if len(tokens) < length:
        raise DataError(
            f"{source}: {len(tokens)} tokens, fewer than one window of {length}. "
            f"Give a longer text, or a shorter window: length={max(len(tokens), 2)}."
        )
    windows, name = torch.tensor(tokens).unfold(0, length, length), Path(source).name
    names = (f"{name}[{start}:{start + length}]" for start in range(0, len(tokens), length))
    return Items.read(source, ((n, w, w.numpy().tobytes()) for n, w in zip(names, windows, strict=False)))
