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


def test_every_pass_is_documented():
    from onespike.passes import PASSES

    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    missing = [f for f in PASSES.values() if f"::: {f.__module__}.{f.__name__}\n" not in text]
    assert missing == []


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


def page(site: Path, name: str) -> str:
    return (site / name / "index.html").read_text(encoding="utf-8")


def test_pages_have_help_figures_and_equations(site):
    assert "onespike doctor" in page(site, "commands")
    assert "<svg" in page(site, "method")
    for name in ("method", "passes-method", "energy"):
        assert page(site, name).count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block"')
    unfinished = [p.parent.name for p in site.rglob("index.html") if "arithmatex" in p.read_text("utf-8")]
    assert unfinished == []  # every equation was typeset


def test_pages_ask_nobody_for_anything(site):
    for file in site.rglob("*.html"):
        found = re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?:[^\" >]+)", file.read_text("utf-8")
        )
        assert [url for url in found if "canonical" not in url] == [], file


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_screen_and_copy_what_can_be_run(site, browser, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for name in ("", "commands", "api", "fronts", "passes-method", "energy", "glossary"):
        browser.get((site / name / "index.html").as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, name
    browser.get((site / "index.html").as_uri())
    script = """
        const wide = c => c.scrollWidth > c.clientWidth + 1;
        const commands = [...document.querySelectorAll(".language-bash code")];
        const code = document.querySelector(".language-pycon code");
        code.setAttribute("data-md-copying", "");
        return [commands.length, commands.filter(wide).length, code.innerText];
    """
    commands, cut, copied = browser.execute_script(script)
    assert commands > 2 and cut == 0
    assert ">>>" not in copied and "(True, True)" not in copied
    compile(copied, "copied", "exec")
