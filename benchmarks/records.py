"""What a benchmark measured, as a file: one record in `benchmarks/results`, from which the documentation makes its tables.

    records.write("front-vit-tiny", rows, about="…", columns={"what": "what", "top1": Column("top-1", "%", ".1f")})

A figure is a number, or a number with what belongs to it: `Figure(−2.0, error=0.9)`. Numbers keep the digits with which they
stand in the file, unless their column has a format.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "results"
COMMIT = re.compile(r"[0-9a-f]{7,40}")


class RecordError(Exception):
    """A record that is not of the form; the message ends with the remedy."""


@dataclass(frozen=True)
class Figure:
    """A number and what belongs to it: its standard error, its interval, what it was before, the same read another way.

    Without a value it is a range.
    """

    value: float | Decimal | None = None
    error: float | Decimal | None = None
    low: float | Decimal | None = None
    high: float | Decimal | None = None
    before: float | Decimal | None = None
    beside: float | Decimal | None = None


@dataclass(frozen=True)
class Column:
    """The head of a column, the unit behind its numbers (a sign of times stands before them), and their format."""

    title: str
    unit: str = ""
    format: str = ""


@dataclass(frozen=True)
class Record:
    """Rows of figures, and what is known about their making; None is not recorded."""

    name: str
    about: str
    columns: dict[str, Column]
    rows: list[dict[str, Any]]
    command: str | None = None
    code: list[str] = field(default_factory=list)
    version: str | None = None
    commit: str | None = None
    date: str | None = None
    processor: str | None = None

    def where(self, label: str) -> list[dict[str, Any]]:
        """The rows that the first column calls so (a pattern); `LABEL @ CELL` are those that also have this cell."""
        pattern, _, also = (part.strip() for part in label.partition(" @ "))
        first = next(iter(self.columns))
        rows = [
            row
            for row in self.rows
            if fnmatchcase(plain(row.get(first, "")), plain(pattern))
            and (not also or plain(also) in map(plain, row.values()))
        ]
        if not rows:
            raise RecordError(f"{self.name} has no row {label!r}. Name rows by its column {first!r}.")
        return rows

    def checked(self) -> Record:
        """Itself, if it is of the form."""

        def refuse(what: str) -> RecordError:
            return RecordError(f"benchmarks/results/{self.name}.json: {what}")

        if not self.columns or not self.rows or not self.about:
            raise refuse("it needs columns, rows and what they are about.")
        if self.commit is not None and not COMMIT.fullmatch(self.commit):
            raise refuse(f"{self.commit!r} is no commit. Give its hash, or null.")
        if self.date is not None:
            try:
                datetime.date.fromisoformat(self.date)
            except ValueError as error:
                raise refuse(f"{self.date!r} is no date. Write YYYY-MM-DD, or null.") from error
        for path in self.code:
            if not (ROOT / path).exists():
                raise refuse(f"its code {path} is not there. Name where it is now.")
        for number, row in enumerate(self.rows, 1):
            if set(row) - set(self.columns):
                raise refuse(f"row {number} has {set(row) - set(self.columns)}. Add these columns.")
            for key, cell in row.items():
                if not isinstance(cell, str | int | float | Decimal | Figure | None):
                    raise refuse(
                        f"{key} of row {number} is {cell!r}. Write a number, a figure, a text or null."
                    )
        return self


def plain(text: Any) -> str:
    """A label without its markup."""
    return re.sub(r"`|\*\*|\]\([^)]*\)|\[", "", str(text)).strip()


def read(name: str) -> Record:
    """The record of this name, checked."""
    file = FOLDER / f"{name}.json"
    if not file.is_file():
        raise RecordError(f"There is no record {name!r} in benchmarks/results. It has: {', '.join(names())}.")
    data = json.loads(file.read_text(encoding="utf-8"), parse_float=Decimal)
    unknown = set(data) - {entry.name for entry in fields(Record)}
    if unknown or data.get("name") != name:
        raise RecordError(
            f"{file.name}: it is called {data.get('name')!r} and has {unknown or 'no unknown'} fields."
        )
    columns = {key: Column(**column) for key, column in data["columns"].items()}
    rows = [
        {key: Figure(**cell) if isinstance(cell, dict) else cell for key, cell in row.items()}
        for row in data["rows"]
    ]
    return Record(**{**data, "columns": columns, "rows": rows}).checked()


def names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.json"))


def text(record: Record) -> str:
    """The record as its file has it: a row on a line."""
    lines = []
    for key, value in ((entry.name, getattr(record, entry.name)) for entry in fields(Record)):
        if key in ("columns", "rows"):
            every = list(value.items()) if key == "columns" else [(None, row) for row in value]
            parts = [(f"{_json(name)}: " if name else "") + _json(part) for name, part in every]
            opening, closing = "{}" if key == "columns" else "[]"
            lines.append(f'"{key}": {opening}\n  ' + ",\n  ".join(parts) + f"\n {closing}")
        else:
            lines.append(f'"{key}": {_json(value)}')
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def _json(value: Any) -> str:
    """JSON in which numbers keep their digits and what is empty is left out."""
    if isinstance(value, float):
        value = Decimal(f"{value:.6g}")  # more digits than these say nothing
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, Column | Figure):
        return _json({key: part for key, part in asdict(value).items() if part not in (None, "")})
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json(key)}: {_json(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def git(*words: str) -> str | None:
    """What git says of this repository; None where there is none, or it does not know."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)  # noqa: S607
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def later(record: Record) -> int | None:
    """How many commits have changed the code of a record since it was made; None if that cannot be told."""
    if record.commit is None or not record.code:
        return None
    log = git("log", "--format=%h", f"{record.commit}..HEAD", "--", *record.code)
    return None if log is None else len(log.split())


def command_line() -> str:
    """The command as it was typed, from the repository's root."""
    script = Path(sys.argv[0]).resolve()
    script = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script
    return shlex.join(["python", str(script), *sys.argv[1:]])


def option(parser: argparse.ArgumentParser) -> None:
    """The option by which a benchmark leaves a record."""
    parser.add_argument(
        "--record", metavar="NAME", help="also write benchmarks/results/NAME.json, from which tables are made"
    )


def write(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    command: str | None = None,
    *,
    about: str,
    columns: Mapping[str, Column | str],
    code: Sequence[str] = (),
) -> Record:
    """Writes a record of what this process measured.

    `code` is what the figures depend on most, beside the script: a page says when that has changed since. A record that is
    made of files with uncommitted changes has no commit.
    """
    from machine import processor

    import onespike
    from onespike.runtime.atomic import write_atomically

    script = Path(sys.argv[0]).resolve()
    paths = [*([str(script.relative_to(ROOT))] if script.is_relative_to(ROOT) else []), *code]
    made = Record(
        name=name,
        about=about,
        columns={key: Column(c) if isinstance(c, str) else c for key, c in columns.items()},
        rows=[dict(row) for row in rows],
        command=command or command_line(),
        code=paths,
        version=onespike.__version__,
        commit=None if git("status", "--porcelain", "--", *paths) else git("rev-parse", "--short=9", "HEAD"),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        processor=processor(),
    ).checked()
    write_atomically(FOLDER / f"{name}.json", text(made))
    return made
