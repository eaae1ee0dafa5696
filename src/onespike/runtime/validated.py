"""Validation of JSON from disk: a dataclass or TypedDict is the schema, and any damage raises one error."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from onespike.errors import LoadError, OnespikeError, out_of_memory, require

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
SEAL = "sha256"
MISFITS = LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError, RuntimeError


def parse(
    schema: type[T], text: str | bytes, place: Path | str, remedy: str, error: type[OnespikeError] = LoadError
) -> T:
    """Return JSON as the type it must have; only whole numbers become floats and lists tuples.

    More than 200 levels of nesting are refused.
    """
    adapter = _adapter(cast(Any, schema))
    from pydantic import ValidationError

    try:
        result: T = adapter.validate_json(text, strict=True)
    except ValidationError as invalid:
        # of several forms that a value may have, the best fit is meant
        first = max(invalid.errors(include_url=False, include_input=False), key=lambda e: len(e["loc"]))
        reason = first["msg"][:1].lower() + first["msg"][1:]
        at = f"at {'.'.join(map(str, first['loc']))}: " if first["loc"] else ""
        raise error(f"{place}: the file is damaged ({at}{reason}). {remedy}") from invalid
    except OnespikeError as refused:  # by a dataclass that checks its values
        raise error(f"{place}: the file is damaged: {refused}") from refused
    return result


def read(schema: type[T], file: Path, remedy: str, error: type[OnespikeError] = LoadError) -> T:
    try:
        text = file.read_bytes()
    except FileNotFoundError as absent:
        raise error(f"{file}: no such file. {remedy}") from absent
    except OSError as refused:
        raise error(f"{file}: the file cannot be read ({refused.strerror}). {remedy}") from refused
    return parse(schema, text, file, remedy, error)


def sealed(record: dict[str, Any]) -> str:
    """Return JSON with the SHA-256 of its contents, so that any damage is found."""
    return json.dumps({**record, SEAL: checksum(record)}, indent=1, ensure_ascii=False) + "\n"


def read_sealed(
    schema: type[Any], file: Path, remedy: str, error: type[OnespikeError] = LoadError, version: int = 0
) -> dict[str, Any] | None:
    """Return the record in a file that `sealed` wrote, after checking version, seal and schema; None without a file."""
    if not file.exists():
        return None
    text = file.read_bytes()
    record = parse(dict[str, Any], text, file, remedy, error)
    if version and (stated := record.get("version")) != version:
        raise error(f"{file}: it has version {stated!r}, and this onespike reads {version}. {remedy}")
    if record.pop(SEAL, None) != checksum(record):
        raise error(f"{file}: the file is damaged (it is not what was saved: its SHA-256 differs). {remedy}")
    parse(schema, text, file, remedy, error)
    return record


def checksum(record: Any) -> str:
    """Return the SHA-256 of a record's contents, independent of text layout."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


@contextmanager
def understood(place: Path | str, remedy: str, error: type[OnespikeError] = LoadError) -> Iterator[None]:
    """Turn any error from values that do not fit each other, or a network, into one error."""
    try:
        yield
    except MISFITS as misfit:
        if out_of_memory(misfit):
            raise
        reason = f"{type(misfit).__name__}: {str(misfit).partition(chr(10))[0][:200]}"
        raise error(f"{place}: what it says does not fit together ({reason}). {remedy}") from misfit


@cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    adapter: TypeAdapter[Any] = require("pydantic", "cli", "reading files").TypeAdapter(schema)
    return adapter
