"""README and documentation as a reader takes them: commands in the order in which they stand, and blocks of code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELLS = ("", "sh", "bash")
COMMAND = re.compile(r"(?:onespike|make|python benchmarks/\S+|accelerate) \S")


class Block(NamedTuple):
    """What stands between two fences; an indented command is a block without a language."""

    language: str
    text: str


def parts(text: str) -> Iterator[Block | str]:
    """Blocks and the prose between them."""
    prose, *blocks = re.split(r"^```(.*)\n((?s:.*?))^```$", text, flags=re.MULTILINE)
    yield from _prose(prose)
    for language, block, prose in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
        yield Block(language.strip(), block)
        yield from _prose(prose)


def _prose(text: str) -> Iterator[Block | str]:
    pieces = re.split(rf"^    ({COMMAND.pattern}.*)$", text, flags=re.MULTILINE)
    for number, piece in enumerate(pieces):
        yield Block("", piece + "\n") if number % 2 else piece


class Command(NamedTuple):
    """A line that can be typed; one between backticks in a sentence may only name a command, or one of its options."""

    line: str
    inline: bool


def commands(page: Path) -> list[Command]:
    """Every command of a page once, in its order; those with … are parts of one, options in brackets are left out."""
    found: dict[str, Command] = {}
    for part in parts(re.sub(r" \\\n\s+", " ", page.read_text(encoding="utf-8"))):
        if isinstance(part, str):
            lines = re.findall(r"`((?:onespike |make |python benchmarks/)[^`]*)`", part)
        elif part.language in SHELLS:
            lines = [line for line in part.text.splitlines() if COMMAND.match(line)]
        else:
            lines = []
        for line in lines:
            bare = re.sub(r"\s+#.*$|\[[^\]]*\]|   .*$", "", line).strip()
            for command in bare.split(" · "):
                if "…" not in command and "|" not in command:
                    found.setdefault(command, Command(command, isinstance(part, str)))
    return list(found.values())


def blocks(page: Path, *languages: str) -> list[str]:
    """What a page shows in these languages."""
    every = parts(page.read_text(encoding="utf-8"))
    return [part.text for part in every if isinstance(part, Block) and part.language in languages]


def of_records() -> list[Command]:
    """The commands that made the records of benchmarks; those with … are parts of one."""
    files = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    made = (json.loads(file.read_text(encoding="utf-8"))["command"] or "" for file in files)
    return [
        Command(line, False) for command in made for line in command.split("\n") if line and "…" not in line
    ]
