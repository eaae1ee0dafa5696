"""What a reader finds: two links from the README to the lines that fire, files of one sitting, no name over a module."""

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
from torch import Tensor, nn

import onespike
from onespike.kernels import build

ROOT = Path(__file__).parents[1]


def lines_of(run: Any, x: Tensor) -> set[tuple[str, int]]:
    """Return the files and lines of the project that run."""
    lines: set[tuple[str, int]] = set()

    def look(frame: FrameType, event: str, argument: Any) -> Any:
        if "onespike" in frame.f_code.co_filename:
            lines.add((str(Path(frame.f_code.co_filename).resolve()), frame.f_lineno))
            return look
        return None

    before = sys.gettrace()
    sys.settrace(look)
    try:
        run(x)
    finally:
        sys.settrace(before)
    return lines


def test_two_links_lead_from_the_readme_to_the_lines_that_fire(monkeypatch: pytest.MonkeyPatch) -> None:
    anchor = "from-the-readme-to-the-line-that-fires"
    assert f"(docs/design.md#{anchor})" in (ROOT / "README.md").read_text("utf-8")
    page = (ROOT / "docs/design.md").read_text("utf-8")
    section = page.partition("## " + anchor.replace("-", " ").replace("from the readme", "From the README"))[
        2
    ]
    links = re.findall(r"\]\(\.\./(src/[\w/]+\.py)#L(\d+)\)", section)[:2]
    by_default, definition = ((str(ROOT / file), int(number)) for file, number in links)
    if build.library() is None:
        pytest.skip(f"no kernels here, so the definition runs by default: {build.note()}")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    snn = onespike.spike(model, list(x.split(8)))
    fast = lines_of(snn, x)
    monkeypatch.setattr("onespike.kernels.fire", lambda *args, **kwargs: None)
    assert by_default in fast and definition in lines_of(snn, x) - fast


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
