"""Damage for bytes, JSON records and checkpoints, drawn from a random generator that a seed fixes."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

Damage = tuple[str, bytes]
"""What was done, in words, and the damaged contents."""

DEEP = 100_000
STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**63, 1.5, -0.0, 1e308, 1e-300, float("nan"), float("inf"), "", "x", "1",
    "../../etc/passwd", "nul\0", "\ud800", "é" * 300, [], [None], [[]], [1, 2, 3], {}, {"": 0}, {"id": 1},
)  # fmt: skip
MODEST: tuple[Any, ...] = tuple(v for v in STRANGE if v != 2**63)
"""For records that state sizes: one that asks for 2⁶³ layers is slow, and not damaged."""


def some_bytes(data: bytes, rng: Random) -> Damage:
    """Flipped, overwritten, lost, repeated or foreign bytes; half of the damage is a single bit."""
    changes: tuple[Callable[[bytes, Random], Damage], ...] = (
        _flip, _flip, _flip, _flip, _overwrite, _cut, _lose, _repeat, _insert, _zeros, _odd_whole,
    )  # fmt: skip
    for _ in range(20):
        what, damaged = rng.choice(changes)(data, rng)
        if damaged != data:
            return what, damaged
    return "all bytes lost", b""


def _flip(data: bytes, rng: Random) -> Damage:
    place, bit = rng.randrange(max(len(data), 1)), rng.randrange(8)
    changed = bytearray(data)
    changed[place : place + 1] = bytes(b ^ (1 << bit) for b in changed[place : place + 1])
    return f"bit {bit} of byte {place} flipped", bytes(changed)


def _overwrite(data: bytes, rng: Random) -> Damage:
    place, count = rng.randrange(max(len(data), 1)), rng.choice((1, 1, 2, 4, 16))
    count = min(count, len(data) - place)
    return f"{count} bytes at {place} random", data[:place] + rng.randbytes(count) + data[place + count :]


def _cut(data: bytes, rng: Random) -> Damage:
    kept = rng.randrange(max(len(data), 1))
    return f"cut after {kept} of {len(data)} bytes", data[:kept]


def _lose(data: bytes, rng: Random) -> Damage:
    place, count = rng.randrange(max(len(data), 1)), rng.choice((1, 3, 64))
    return f"{count} bytes at {place} lost", data[:place] + data[place + count :]


def _repeat(data: bytes, rng: Random) -> Damage:
    place, count = rng.randrange(max(len(data), 1)), rng.choice((1, 8, 512))
    return f"{count} bytes at {place} twice", data[: place + count] + data[place:]


def _insert(data: bytes, rng: Random) -> Damage:
    place, count = rng.randrange(len(data) + 1), rng.choice((1, 4, 100))
    return f"{count} random bytes put in at {place}", data[:place] + rng.randbytes(count) + data[place:]


def _zeros(data: bytes, rng: Random) -> Damage:
    place, count = rng.randrange(max(len(data), 1)), rng.choice((1, 16, 4096))
    count = min(count, len(data) - place)
    return f"{count} bytes at {place} zero", data[:place] + bytes(count) + data[place + count :]


def _odd_whole(data: bytes, rng: Random) -> Damage:
    return rng.choice(
        (
            ("empty", b""),
            ("noise", rng.randbytes(min(len(data), 2000))),
            ("a byte order mark in front", b"\xef\xbb\xbf" + data),
            ("UTF-16", data.decode("latin-1").encode("utf-16")),
            (f"JSON {DEEP} deep", b"[" * DEEP + b"]" * DEEP),
            (f"objects {DEEP} deep", b'{"a":' * DEEP + b"1" + b"}" * DEEP),
            ("a number of 5000 digits", b'{"version": ' + b"9" * 5000 + b"}"),
            ("null", b"null"),
            ("an empty object", b"{}"),
            ("a list of the contents", b"[" + data + b"]"),
        )
    )


def one_field(data: bytes, rng: Random, *, sealed_again: bool, values: tuple[Any, ...] = STRANGE) -> Damage:
    """A field of a JSON record lost, renamed, added or of another type; its checksum made anew where asked."""
    record = json.loads(data)
    seal = isinstance(record, dict) and record.get("sha256") == checksum(record)
    what = _change(record, rng, values)
    if seal and sealed_again:
        record["sha256"] = checksum(record)
        what += ", sealed again"
    return what, json.dumps(record, indent=1).encode()


ODD_YAML = (
    "!!timestamp x", "!!bool x", "!!int x", "!!int ''", "!!float x", "!!float ''", "!!binary é", "!!set x", "!!omap x",
    "!!python/object/apply:os.system ['touch canary']", "!!python/name:os.system", "!!null x", "&a [*a]", "*a", "<<",
    "2001-99-99", "2001-01-01", "1:2:3.4", "0x" + "f" * 9000, "1e400", ".nan", "-.inf", "~", "yes", "[", "{a: ", "| x",
    "'", "? [a]", "{? [a] : b}", "\t", "%TAG ! x", "--- a", "... a", "@", "`", "!x y", "!<x> y", "2001-01-01t99:99:99",
    "&a [&b [x, x], *b, *b]", "=", "12e", "0o9", "0b2", "1_0", "'\\x'", '"\\x"', '"\\ud800"', "9" * 5000, "[" * 5000,
)  # fmt: skip


def yaml_value(data: bytes, rng: Random) -> Damage:
    """A value or a key of a recipe in YAML that is odd."""
    lines = data.decode().splitlines()
    place, odd = rng.randrange(len(lines)), rng.choice(ODD_YAML)
    name, _, value = lines[place].partition(": ")
    lines[place] = f"{name}: {odd}" if rng.random() < 0.8 else f"{odd}: {value}"
    return f"line {place + 1} is {lines[place]!r:.60}", ("\n".join(lines) + "\n").encode()


def _change(record: Any, rng: Random, values: tuple[Any, ...]) -> str:
    places = list(_places(record, ""))
    where, holder, key = rng.choice(places)
    action = rng.choice(("replace", "replace", "replace", "lose", "rename", "add", "nudge", "swap"))
    if action == "nudge" and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
        holder[key] = holder[key] * rng.choice((-1, 2, 0.5, 1.0001)) + rng.choice((0, 1))
        return f"{where} = {holder[key]!r}"
    if action == "lose":
        del holder[key]
        return f"{where} lost"
    if action == "rename" and isinstance(holder, dict):
        holder[f"{key}_"] = holder.pop(key)
        return f"{where} renamed"
    if action == "add" and isinstance(holder, dict):
        holder["unknown"] = rng.choice(values)
        return f"beside {where}: unknown = {holder['unknown']!r:.60}"
    if action == "swap":
        other, other_holder, other_key = rng.choice(places)
        value, other_value = (json.dumps(h[k]) for h, k in ((holder, key), (other_holder, other_key)))
        holder[key] = json.loads(other_value)
        if other_holder is holder:
            holder[other_key] = json.loads(value)
        return f"{where} = what {other} is"
    holder[key] = rng.choice(values)
    return f"{where} = {holder[key]!r:.60}"


def _places(record: Any, where: str) -> Any:
    """Every field with the way to it."""
    inside = record.items() if isinstance(record, dict) else enumerate(record)
    for key, value in list(inside):
        yield f"{where}/{key}", record, key
        if isinstance(value, (dict, list)):
            yield from _places(value, f"{where}/{key}")


def checksum(record: dict[str, Any]) -> str:
    """The seal of a record: the SHA-256 of its contents without the seal."""
    rest = {key: value for key, value in record.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def inside_zip(data: bytes, rng: Random) -> Damage:
    """Damage to the pickle within a checkpoint whose archive is whole: its checksums are right."""
    source = zipfile.ZipFile(io.BytesIO(data))
    target = io.BytesIO()
    what = ""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name in source.namelist():
            contents = source.read(name)
            if name.endswith("data.pkl"):
                what, contents = some_bytes(contents, rng)
            archive.writestr(name, contents)
    return f"within data.pkl: {what}", target.getvalue()
