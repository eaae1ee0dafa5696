"""The documentation: every public name is there with an example, and it builds without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import onespike

ROOT = Path(__file__).parents[1]


def test_every_public_name_is_documented_with_an_example():
    names = (ROOT / "src/onespike/public.py").read_text(encoding="utf-8")
    public = set(re.findall(r" as (\w+)$", names, re.MULTILINE))
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    assert len(public) > 15 and all(hasattr(onespike, name) for name in public)
    described = {*re.findall(r"^::: onespike\..*?(\w+)$", text, re.MULTILINE), "NEURONS"}
    examples = "".join(re.findall(r"^(?:>>>|\.\.\.) .*$", text, re.MULTILINE))
    assert public <= described and public <= set(re.findall(r"onespike\.(\w+)", examples))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages, built once."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'onespike[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    # a warning is an error: a page without a place in the menu, a dead link
    assert done.returncode == 0, done.stderr
    return folder


def test_every_equation_is_typeset(site):
    unfinished = [p.parent.name for p in site.rglob("index.html") if "arithmatex" in p.read_text("utf-8")]
    assert unfinished == []
    energy = (site / "energy" / "index.html").read_text(encoding="utf-8")
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block"' in energy


def test_pages_ask_nobody_for_anything(site):
    for file in site.rglob("*.html"):
        found = re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?:[^\" >]+)", file.read_text("utf-8")
        )
        assert [url for url in found if "canonical" not in url] == [], file


def test_pages_fit_the_screen_and_copy_what_can_be_run(site, browser, screen):
    for name in ("commands", "api", "fronts", "energy", ""):
        browser.get((site / name / "index.html").as_uri())
        assert screen(390) <= 390, name
    script = """
        const code = document.querySelector(".language-pycon code");
        code.setAttribute("data-md-copying", "");
        return code.innerText;
    """
    copied = browser.execute_script(script)
    assert ">>>" not in copied and "(True, True)" not in copied
    compile(copied, "copied", "exec")
