"""What a reader finds: two links from the README to the line that fires, files of one sitting, no name over a module."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import onespike
from onespike.kernels import build

ROOT = Path(__file__).parents[1]


def executed(run: Any, *args: Any) -> set[tuple[str, int]]:
    """Return the files and lines of the project that run."""
    lines: set[tuple[str, int]] = set()

    def look(frame: FrameType, event: str, argument: Any) -> Any:
        if "onespike" not in frame.f_code.co_filename:
            return None
        lines.add((str(Path(frame.f_code.co_filename).resolve()), frame.f_lineno))
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        run(*args)
    finally:
        sys.settrace(before)
    return lines


def test_two_links_lead_from_the_readme_to_the_lines_that_fire(monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.search(r"\]\((docs/design\.md)#([\w-]+)\)", readme)
    assert first is not None
    page = (ROOT / first[1]).read_text(encoding="utf-8")
    headings = [
        re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-")
        for h in re.findall(r"^#+ (.*)$", page, re.M)
    ]
    assert first[2] in headings
    section = page[page.index("## From the README") :]
    by_default, definition = re.findall(r"\]\(\.\./(src/[\w/]+\.py)#L(\d+)\)", section)[:2]
    if build.library() is None:
        pytest.skip(f"no kernels here, so the definition runs by default: {build.note()}")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    snn = onespike.spike(model, list(x.split(8)))
    fast = executed(snn, x)
    monkeypatch.setattr(build, "library", lambda: None)
    plain = executed(snn, x)
    assert (str(ROOT / by_default[0]), int(by_default[1])) in fast
    assert (str(ROOT / definition[0]), int(definition[1])) in plain - fast


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
