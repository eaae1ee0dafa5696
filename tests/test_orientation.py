"""What a reader finds: two links from the README to the lines that fire, files of one sitting, no name over a module."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType

from onespike.neurons import Neuron
from onespike.spikes import SpikeCode

ROOT = Path(__file__).parents[1]


def test_two_links_lead_from_the_readme_to_the_functions_that_fire() -> None:
    anchor = "from-the-readme-to-the-line-that-fires"
    assert f"(docs/design.md#{anchor})" in (ROOT / "README.md").read_text("utf-8")
    page = (ROOT / "docs/design.md").read_text("utf-8")
    section = page.partition("## " + anchor.replace("-", " ").replace("from the readme", "From the README"))[
        2
    ]
    links = re.findall(r"\]\(\.\./(src/[\w/]+\.py)#L(\d+)\)", section)[:2]
    for (file, number), function in zip(links, (Neuron.fused, SpikeCode.fire_coordinate), strict=True):
        lines, first = inspect.getsourcelines(function)
        assert str(ROOT / file) == inspect.getsourcefile(function)
        assert int(number) in range(first + 1, first + len(lines))


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
