"""Whatever is read from disk as JSON passes here: a dataclass or TypedDict as its schema, one error for any damage."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from onespike.errors import LoadError, OnespikeError, out_of_memory

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
SEAL = "sha256"


def dotted(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location))


def parse(
    schema: type[T],
    text: str | bytes,
    place: Path | str,
    remedy: str,
    error: type[OnespikeError] = LoadError,
    where: Callable[[tuple[int | str, ...]], str] = dotted,
) -> T:
    """JSON as the type that it must have; nothing is converted but whole numbers to floats and lists to tuples.

    Args:
        schema: any type that pydantic knows: dataclasses, TypedDicts, dict[str, float], ….
        text: UTF-8. More than 200 levels of nesting are refused.
        place: the file that the message names.
        remedy: how the message ends.
        error: which error is raised.
        where: how the message names a place in the file.

    >>> parse(dict[str, tuple[float, ...]], '{"a": [1, 2]}', "a.json", "Write it again.")
    {'a': (1.0, 2.0)}
    >>> parse(dict[str, tuple[float, ...]], '{"a": [1, "2"]}', "a.json", "Write it again.")
    Traceback (most recent call last):
    ...
    onespike.errors.LoadError: a.json: the file is damaged (at a.1: input should be a valid number). Write it again.
    """
    adapter = _adapter(cast(Any, schema))
    from pydantic import ValidationError

    try:
        result: T = adapter.validate_json(text, strict=True)
    except ValidationError as found:
        # of several forms that a value may have, the one that fits furthest is meant
        first = max(found.errors(include_url=False, include_input=False), key=lambda e: len(e["loc"]))
        reason = first["msg"][:1].lower() + first["msg"][1:]
        at = f"at {where(first['loc'])}: " if first["loc"] else ""
        raise error(f"{place}: the file is damaged ({at}{reason}). {remedy}") from found
    except OnespikeError as found:  # of a dataclass that checks its own values
        raise error(f"{place}: the file is damaged: {found}") from found
    return result


def read(
    schema: type[T], file: Path, remedy: str, error: type[OnespikeError] = LoadError, missing: T | None = None
) -> T:
    """A JSON file as the type that it must have; `missing`, if given, stands for a file that is not there."""
    try:
        text = file.read_bytes()
    except FileNotFoundError as absent:
        if missing is not None:
            return missing
        raise error(f"{file}: no such file. {remedy}") from absent
    except OSError as refused:
        raise error(f"{file}: the file cannot be read ({refused.strerror}). {remedy}") from refused
    return parse(schema, text, file, remedy, error)


def sealed(record: dict[str, Any]) -> str:
    """JSON with the SHA-256 of its contents, so that damage of any kind is found."""
    return json.dumps({**record, SEAL: _checksum(record)}, indent=1, ensure_ascii=False) + "\n"


def unsealed(
    schema: type[Any], text: bytes, place: Path | str, remedy: str, error: type[OnespikeError] = LoadError
) -> dict[str, Any]:
    """A record that `sealed` wrote, as it is, after its seal and its schema have been checked."""
    record = parse(dict[str, Any], text, place, remedy, error)
    if record.pop(SEAL, None) != _checksum(record):
        raise error(f"{place}: the file is damaged (it is not what was saved: its SHA-256 differs). {remedy}")
    parse(schema, text, place, remedy, error)
    return record


def read_sealed(
    schema: type[Any], file: Path, remedy: str, error: type[OnespikeError] = LoadError
) -> dict[str, Any] | None:
    """The record in a file that `sealed` wrote; None where there is no file."""
    return unsealed(schema, file.read_bytes(), file, remedy, error) if file.exists() else None


def _checksum(record: dict[str, Any]) -> str:
    """The SHA-256 of a record's contents, however the text is laid out."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


@contextmanager
def understood(place: Path | str, remedy: str, error: type[OnespikeError] = LoadError) -> Iterator[None]:
    """Values of the right types may still not fit each other, or a network: whatever that raises is one error."""
    try:
        yield
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        AssertionError,
        RuntimeError,
    ) as found:
        if out_of_memory(found):
            raise
        reason = f"{type(found).__name__}: {str(found).partition(chr(10))[0][:200]}"
        raise error(f"{place}: what it says does not fit together ({reason}). {remedy}") from found


@cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    try:
        from pydantic import TypeAdapter
    except ImportError as absent:
        raise LoadError(
            "reading files needs pydantic. Install it with: pip install 'onespike[cli]'"
        ) from absent
    return TypeAdapter(schema)
