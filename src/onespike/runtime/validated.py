"""Validation of JSON from disk: a dataclass or TypedDict is the schema, and any damage raises one error."""

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
    """Return JSON as the type it must have; only whole numbers become floats and lists tuples.

    Args:
        schema: any type that pydantic knows: dataclasses, TypedDicts, dict[str, float], ….
        text: UTF-8. More than 200 levels of nesting are refused.
        place: the file to name in the message.
        remedy: the end of the message.
        error: the error to raise.
        where: how the message names a position in the file.

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
        # of several forms that a value may have, the best fit is meant
        first = max(found.errors(include_url=False, include_input=False), key=lambda e: len(e["loc"]))
        reason = first["msg"][:1].lower() + first["msg"][1:]
        at = f"at {where(first['loc'])}: " if first["loc"] else ""
        raise error(f"{place}: the file is damaged ({at}{reason}). {remedy}") from found
    except OnespikeError as found:  # of a dataclass that checks its values
        raise error(f"{place}: the file is damaged: {found}") from found
    return result


def read(
    schema: type[T], file: Path, remedy: str, error: type[OnespikeError] = LoadError, missing: T | None = None
) -> T:
    """Return a JSON file as the type it must have, or `missing`, if given, when there is no file."""
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
    """Return JSON with the SHA-256 of its contents, so that any damage is found."""
    return json.dumps({**record, SEAL: _checksum(record)}, indent=1, ensure_ascii=False) + "\n"


def unsealed(
    schema: type[Any], text: bytes, place: Path | str, remedy: str, error: type[OnespikeError] = LoadError
) -> dict[str, Any]:
    """Return a record that `sealed` wrote, after checking its seal and its schema."""
    record = parse(dict[str, Any], text, place, remedy, error)
    if record.pop(SEAL, None) != _checksum(record):
        raise error(f"{place}: the file is damaged (it is not what was saved: its SHA-256 differs). {remedy}")
    parse(schema, text, place, remedy, error)
    return record


def read_sealed(
    schema: type[Any], file: Path, remedy: str, error: type[OnespikeError] = LoadError
) -> dict[str, Any] | None:
    """Return the record in a file that `sealed` wrote; None if there is no file."""
    return unsealed(schema, file.read_bytes(), file, remedy, error) if file.exists() else None


def read_version(schema: type[Any], file: Path, version: int, what: str, remedy: str) -> dict[str, Any]:
    """Return the record in a file that `sealed` wrote, if it has the version that is read here."""
    text = file.read_bytes()
    stated = parse(dict[str, Any], text, file, remedy).get("version")
    if stated != version:
        raise LoadError(
            f"{file.parent}: {what} has version {stated!r}, and this onespike reads {version}. {remedy}"
        )
    return unsealed(schema, text, file, remedy)


def _checksum(record: dict[str, Any]) -> str:
    """Return the SHA-256 of a record's contents, independent of text layout."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


@contextmanager
def understood(place: Path | str, remedy: str, error: type[OnespikeError] = LoadError) -> Iterator[None]:
    """Turn any error from values that do not fit each other, or a network, into one error."""
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
