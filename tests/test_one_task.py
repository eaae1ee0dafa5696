"""No task's name stands outside `tasks/` and `adapters/`: every stage knows the protocol only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import onespike
from onespike.tasks import TASKS

SOURCE = Path(onespike.__file__).parent
WORDS = re.compile(
    "|".join(
        [
            *TASKS,
            r"classif|(?<!published_)\btop-?[15]\b|detect(?!ron)|segmentation|\bcoco\b|\bbbox|\bsegm\b|(box|mask) AP\b|perplexity|tokeniz",
        ]
    ),
    re.IGNORECASE,
)
ALLOWED = {
    "conversion/network.py": r"^Embedding(Bag)?$",  # modules of torch
    "kernels/gpu.py": r"triton.language",  # the name of its module
    "presets.py": r"paper-eva-|^SmolLM2|^docs/",  # what the paper calls them, what they were measured on
    "recipe.py": r"those of a detector",
    "studies/reproduce/tables.py": r".",  # the paper's tables, of boxes and masks too
    "studies/reproduce/paper.py": r"DETECTION|COCO-2017",  # its numbers
    "studies/demo.py": r"^(classification|segmentation)$",  # each bundled network has its demo
    "cli/demo.py": r"classification|segmentation",
    "cli/evaluate.py": r"^onespike evaluate",  # examples of commands
    "cli/options.py": r"COCO's instances JSON|classification or segmentation",
    "cli/renamed.py": r"demo segmentation",
    "cli/reproduce.py": r"^onespike reproduce",
    "cli/search.py": r"^onespike search",
}
"""File → what may stand there all the same."""


def spoken(tree: ast.Module) -> Iterator[str]:
    """Every identifier and every text that is not a docstring."""
    silent = {
        id(body[0].value)
        for node in ast.walk(tree)
        if (body := getattr(node, "body", None)) and isinstance(body, list) and isinstance(body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.value
        for name in ("id", "attr", "name", "asname", "arg", "module"):
            if isinstance(value := getattr(node, name, None), str):
                yield value


def found_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {text for text in spoken(tree) if WORDS.search(text)}


def test_no_tasks_name_stands_outside_tasks_and_adapters():
    wrong = {}
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if place.startswith(("tasks/", "adapters/")):
            continue
        allowed = ALLOWED.get(place)
        if texts := {t for t in found_in(path) if allowed is None or not re.search(allowed, t)}:
            wrong[place] = texts
    assert wrong == {}
    assert [place for place in ALLOWED if not found_in(SOURCE / place)] == [], "every exception is used"


def test_a_fork_would_be_found(tmp_path):
    file = tmp_path / "fork.py"
    for text, words in (
        ('"""About a detector."""\nif "bbox" in record:\n    detects = True\n', {"bbox", "detects"}),
        ('import coco as pairs\nf"{x} top-1"\nrow["top1"]\nrun(detection=1)\nlevels.published_top1\n', {"coco", " top-1", "top1", "detection"}),
    ):  # fmt: skip
        file.write_text(text)
        assert found_in(file) == words


def test_pages_know_no_task():
    pages = [*(SOURCE / "reports" / "templates").glob("*.html")]
    words = r"classif|detect|coco|bbox|segm\b|AP50|top1(?!\b.*published)"
    assert pages and [p.name for p in pages if re.search(words, p.read_text(encoding="utf-8"))] == []
