"""A text file, a folder of them, rows of JSON or a dataset → documents."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onespike.errors import DataError

SUFFIXES = (".jsonl", ".md", ".raw", ".text", ".tsv", ".txt")
DATASETS = "datasets:"
BETWEEN = "\n\n"
"""The separator between the rows of a dataset that form one text, as GPTQ joins WikiText."""
PAIRS = (("sentence1", "sentence2"), ("text", "pair"), ("text1", "text2"))
"""Names under which JSON rows hold two texts that belong together."""


@dataclass(frozen=True)
class Document:
    """One text, or the numbers of its tokens; for pairs also the other text and their rated similarity."""

    name: str
    text: str = ""
    ids: tuple[int, ...] | None = None
    other: str | None = None
    score: float | None = None


def documents(source: str) -> list[Document]:
    """Return every document of a source; empty ones are left out.

    A `.txt` file (or `.md`, `.raw`, `.text`) is one document, a folder has one per file, a `.jsonl` file one per
    row: `{"text": …}`, `{"input_ids": […]}`, or two texts as `{"sentence1": …, "sentence2": …, "score": …}`. A
    `.tsv` file has one pair per row, perhaps with a score. `datasets:NAME[,CONFIGURATION][@SPLIT]` is read by the
    library of that name, or from a folder that its `save_to_disk` wrote; its rows are joined to one document.
    """
    if source.startswith(DATASETS):
        every = [_dataset(source)]
    elif Path(source).is_dir():
        files = sorted(p for p in Path(source).rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        if not files:
            raise DataError(f"{source}: no text in it. Give files that end in {', '.join(SUFFIXES)}.")
        every = [document for file in files for document in _file(file)]
    else:
        every = list(_file(Path(source)))
    filled = [d for d in every if d.text.strip() or d.ids]
    if not filled:
        raise DataError(f"{source}: there is no text in it. Give a file with some.")
    return filled


def _file(path: Path) -> Iterator[Document]:
    if not path.exists():
        raise DataError(f"{path}: no such file. Check the path.")
    if not path.is_file():  # a device has no end, and a pipe may have no writer
        raise DataError(f"{path}: this is neither a file nor a folder. Write the text to a file.")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8. Give a text in UTF-8.") from error
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror}). Change its permissions.") from error
    read = {".jsonl": _row, ".tsv": _pair}.get(path.suffix.lower())
    if read is None:
        yield Document(path.name, text)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield read(f"{path.name}:{number}", line)


def _row(name: str, line: str) -> Document:
    try:
        row = json.loads(line)
        if "\\" in line:
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{name}: half a character (\\ud800 to \\udfff) stands alone. Correct it.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: this row is not JSON ({error}). Correct it.") from error
    if isinstance(row, dict):
        for first, second in PAIRS:
            if isinstance(row.get(first), str) and isinstance(row.get(second), str):
                return Document(name, row[first], other=row[second], score=_score(name, row.get("score")))
        if isinstance(row.get("text"), str):
            return Document(name, row["text"])
        ids = row.get("input_ids")
        if isinstance(ids, list) and all(type(i) is int for i in ids):
            return Document(name, ids=tuple(ids))
    raise DataError(f'{name}: a row holds {{"text": …}} or {{"input_ids": […]}}, and this one does not.')


def _pair(name: str, line: str) -> Document:
    first, *rest = line.split("\t")
    if len(rest) not in (1, 2):
        raise DataError(f"{name}: {len(rest) + 1} columns. Give two texts and perhaps a score, tabs between.")
    return Document(name, first, other=rest[0], score=_score(name, rest[1]) if len(rest) == 2 else None)


def _score(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        score = float(value)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise DataError(f"{name}: the score {value!r:.60} is not a number. Correct it.")
    return score


def _dataset(source: str) -> Document:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{source}: this needs datasets. Install it: pip install 'onespike[language]'"
        ) from error
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
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(
            f"{source}: the dataset cannot be read ({reason}). "
            "Name one with a column 'text', as datasets:NAME,CONFIGURATION@SPLIT, or a folder of save_to_disk."
        ) from error
    return Document(source, BETWEEN.join(texts))
