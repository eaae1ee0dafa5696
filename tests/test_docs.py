"""The documentation: every example in it runs, every public name is there with one, and it builds without a warning."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import onespike

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
FENCE = re.compile(r"^```(?:python|pycon)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def examples(page: Path) -> str:
    blocks = FENCE.findall(page.read_text(encoding="utf-8"))
    return "\n".join(block for block in blocks if ">>>" in block)


@pytest.mark.parametrize("page", [p for p in PAGES if examples(p)], ids=lambda page: page.stem)
def test_examples_run(page):
    test = doctest.DocTestParser().get_doctest(examples(page), {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    runner.run(test, out=said.append)
    assert not runner.summarize(verbose=False).failed, "".join(said)


def test_every_public_name_is_documented_with_an_example():
    names = (ROOT / "src/onespike/__init__.py").read_text(encoding="utf-8")
    public = re.findall(r" as (\w+)$", names, re.MULTILINE)
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    assert len(public) > 15
    assert all(hasattr(onespike, name) for name in public)
    described = set(re.findall(r"^::: onespike\..*?(\w+)$", text, re.MULTILINE)) | {"NEURONS"}
    assert [name for name in public if name not in described] == []
    shown = set(re.findall(r"onespike\.(\w+)", examples(ROOT / "docs/api.md")))
    assert [name for name in public if name not in shown] == []


def test_it_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'onespike[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "site" / "commands" / "index.html").read_text(encoding="utf-8")
    assert "onespike doctor" in commands
    assert "<svg" in (tmp_path / "site" / "method" / "index.html").read_text(encoding="utf-8")
