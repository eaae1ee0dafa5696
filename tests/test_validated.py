"""Everything read from disk has a schema; damage is one error that names the file, the field and the remedy."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from contract.networks import refused
from onespike.errors import LoadError, UsageError
from onespike.runtime.validated import parse, read, read_sealed, sealed, understood


@dataclass(frozen=True)
class Point:
    name: str
    at: tuple[float, float]
    weight: int = 1


GOOD = '{"name": "a", "at": [1, 2.5]}'
DAMAGES = {
    '{"at": [1, 2]}': "at name: field required",
    '{"name": 3, "at": [1, 2]}': "at name: input should be a valid string",
    '{"name": "a", "at": [1]}': "at at.1: field required",
    '{"name": "a", "at": [1, true]}': "at at.1: input should be a valid number",
    '{"name": "a", "at": [1, 2], "weight": 1.5}': "at weight: input should be a valid integer",
    "[" * 100_000: "invalid JSON: recursion limit exceeded at line 1 column 202",
    "": "invalid JSON: EOF while parsing a value at line 1 column 0",
    b'{"name": "\xff"}': "invalid JSON: invalid unicode code point at line 1 column 11",
}


@pytest.mark.parametrize("text", DAMAGES, ids=lambda text: repr(text[:40]))
def test_damage(text):
    assert parse(Point, GOOD, "a.json", "Mend it.") == Point("a", (1.0, 2.5))
    with refused(LoadError, f"a.json: the file is damaged ({DAMAGES[text]}). Mend it."):
        parse(Point, text, "a.json", "Mend it.")


def test_files(tmp_path):
    file = tmp_path / "a.json"
    with refused(UsageError, f"{file}: no such file. Make one."):
        read(dict[str, int], file, "Make one.", UsageError)
    file.write_text('{"a": 1}')
    assert read(dict[str, int], file, "Mend it.") == {"a": 1}
    with refused(LoadError, f"{tmp_path}: the file cannot be read (Is a directory). Mend it."):
        read(dict[str, int], tmp_path, "Mend it.")


def test_a_seal_finds_any_change(tmp_path):
    file = tmp_path / "a.json"
    assert read_sealed(Point, file, "Mend it.") is None
    record = {"name": "λ", "at": [1, 0.1], "more": {"x": None}}
    file.write_text(sealed(record), encoding="utf-8")
    assert read_sealed(Point, file, "Mend it.") == record
    for old, new in (("0.1", "0.2"), ('"more"', '"less"'), ('"sha256"', '"sha"')):
        file.write_text(sealed(record).replace(old, new), encoding="utf-8")
        reason = "it is not what was saved: its SHA-256 differs"
        with refused(LoadError, f"{file}: the file is damaged ({reason}). Mend it."):
            read_sealed(Point, file, "Mend it.")
    file.write_text(sealed({"name": "a"}), encoding="utf-8")
    with pytest.raises(LoadError, match="at at: field required"):
        read_sealed(Point, file, "Mend it.")


def test_values_that_do_not_fit_together():
    message = "a.json: what it says does not fit together (KeyError: 'x'). Mend it."
    with refused(LoadError, message), understood("a.json", "Mend it."):
        {}["x"]
    with pytest.raises(MemoryError), understood("a.json", "Mend it."):
        raise MemoryError
    with pytest.raises(UsageError, match=r"^own$"), understood("a.json", "Mend it."):
        raise UsageError("own")
