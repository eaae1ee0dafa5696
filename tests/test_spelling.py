"""One spelling: American, in code and text."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEMS = [
    "quantis",
    "normalis",
    "minimis",
    "maximis",
    "initialis",
    "summaris",
    "organis",
    "recognis",
    "generalis",
    "serialis",
    "specialis",
    "standardis",
    "utilis",
    "vectoris",
    "discretis",
    "parallelis",
    "synchronis",
    "categoris",
    "memoris",
    "visualis",
    "penalis",
    "prioritis",
    "customis",
    "finalis",
    "factoris",
    "linearis",
    "regularis",
    "binaris",
    "tokenis",
    "randomis",
    "optimis",
    "realis",
    "characteris",
]
WORDS = [
    "colour",
    "behaviour",
    "neighbour",
    "favour",
    "honour",
    "labour",
    "centre",
    "centred",
    "licence",
    "grey",
    "modelled",
    "modelling",
    "labelled",
    "labelling",
    "unlabelled",
    "cancelled",
    "cancelling",
    "travelled",
    "catalogue",
    "artefact",
    "judgement",
    "sceptic",
    "analyse",
    "whilst",
    "amongst",
    "learnt",
    "spelt",
]
BRITISH = re.compile(
    rf"(?:{'|'.join(STEMS)})(?:e[ds]?|er|ing|ation)(?![a-z])|(?:{'|'.join(WORDS)})s?(?![a-z])", re.IGNORECASE
)
ALLOWED = {
    "src/onespike/runs/storage.py": {"centre"},  # how earlier runs spell a tensor
    "src/onespike/runs/saving.py": {"normalisation"},
}


def british(text: str) -> set[str]:
    return {word.lower() for word in BRITISH.findall(text)}


def test_words_are_spelled_in_one_way():
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.c", "*.h", "*.html", "*.toml", "*.yml", "Makefile"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    files = listed.stdout.split() or [
        str(path.relative_to(ROOT))
        for part in ("src", "docs", "tests")
        for path in (ROOT / part).rglob("*.*")
        if path.suffix in (".py", ".md")
    ]
    assert len(files) > 100
    wrong = {
        name: found
        for name in files
        if name != "tests/test_spelling.py" and (ROOT / name).is_file()
        and (found := british((ROOT / name).read_text(encoding="utf-8")) - ALLOWED.get(name, set()))
    }  # fmt: skip
    assert wrong == {}


def test_a_british_word_would_be_found():
    assert british("normalised layer_norm, aria-labelledby; Colours of noise, raise, precise, otherwise") == {
        "normalised", "colours",
    }  # fmt: skip
