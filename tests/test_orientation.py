"""What a reader finds: two links from the README to the lines that fire, files of one sitting, no name over a module."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def test_two_links_lead_from_the_readme_to_the_lines_that_fire() -> None:
    assert "(docs/design.md#from-the-readme-to-the-line-that-fires)" in (ROOT / "README.md").read_text(
        "utf-8"
    )
    section = (
        (ROOT / "docs/design.md").read_text("utf-8").partition("## From the README to the line that fires")[2]
    )
    links = re.findall(r"\]\(\.\./(src/[\w/]+\.py)#L(\d+)\)", section)[:2]
    lines = [(ROOT / file).read_text("utf-8").splitlines()[int(number) - 1] for file, number in links]
    assert "kernels.fire(" in lines[0] and "magnitude(x, up, down) + 0.5" in lines[1]


def test_no_file_takes_more_than_one_sitting() -> None:
    files = [file for folder in ("src", "tests", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
    lines = {str(file): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {file: count for file, count in lines.items() if count > 400} == {}


def test_no_name_hides_a_module() -> None:
    for module in pkgutil.walk_packages([str(ROOT / "src/onespike")], "onespike."):
        if module.name != "onespike.__main__":  # runs when it is imported
            importlib.import_module(module.name)
            parent, _, name = module.name.rpartition(".")
            assert isinstance(getattr(importlib.import_module(parent), name), ModuleType), module.name
