"""Every command that README and documentation name can be typed; the README's own lines run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from onespike import tasks
from onespike.cli.app import app
from onespike.recipe import DEFAULT, PRESETS, Preset

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = {
    "MODEL": "bundled:cifar10-vit",
    "RUN": "run",
    "RUN…": "run",
    "DIR": "photos",
    "FILE": "file.json",
    "F": "file.json",
    "NAME": "onnx",
    "FORMAT": "onnx",
    "N": "4",
    "COLUMN": "binary",
}
"""What stands for the words that a reader replaces."""


def commands(page: Path) -> list[str]:
    """Commands in blocks and between backticks; those with … are parts of one, and options in brackets are left out."""
    text = re.sub(r" \\\n\s+", " ", page.read_text(encoding="utf-8"))
    blocks = re.findall(r"^    ((?:onespike|make|python|accelerate) .*)$", text, re.MULTILINE)
    fenced = "\n".join(re.findall(r"^```(?:bash)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    listed = re.findall(r"^(onespike .*?)(?:   .*)?$", fenced, re.MULTILINE)
    inline = re.findall(r"`((?:onespike|make|python benchmarks)[ ][^`]*)`", text)
    found = [re.sub(r"\s+#.*$|\[[^\]]*\]", "", line).strip() for line in (*blocks, *listed, *inline)]
    return [c for line in found for c in re.split(r" · ", line) if "…" not in c and "|" not in c]


ALL = [(page, c) for page in PAGES for c in dict.fromkeys(commands(page))]


def test_there_are_many():
    assert len(ALL) > 80 and {c.split()[0] for _, c in ALL} >= {"onespike", "make", "python"}


@pytest.mark.parametrize(("page", "line"), ALL, ids=[f"{p.stem}: {c[:60]}" for p, c in ALL])
def test_it_can_be_typed(page, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)
    if words[0] == "make":
        targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [w for w in words[1:] if "=" not in w and w not in targets] == []
    elif words[0] == "python":
        script = ROOT / words[1]
        sources = [script] if script.is_file() else sorted(script.rglob("*.py"))
        text = "\n".join(s.read_text(encoding="utf-8") for s in sources)
        assert text, words[1]
        unknown = [w for w in words[2:] if w.startswith("--") and w.partition("=")[0] not in text]
        assert unknown == []
    else:
        start = words.index("onespike")
        is_typed(words[start + 1 :])


def is_typed(words: list[str]) -> None:
    """The command exists, has these options, and none that it needs is missing from a whole command."""
    group = typer.main.get_command(app)
    if words[0].startswith("--") or len(words) == 1:  # onespike --version, or a command that is only named
        assert words[0] in group.commands or words[0] in ("--version", "--help")
        return
    command = group.commands[words[0]]
    options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
    assert [w for w in words if w.startswith("--") and w not in options] == []
    replaced = [NAMES.get(word, word) for word in words[1:]]
    try:
        command.make_context(words[0], replaced)
    except Exception as error:  # typer has exceptions of its own
        if type(error).__name__ == "Exit":
            assert "--help" in words
        elif type(error).__name__ == "MissingParameter":
            # "`onespike evaluate --compare` measures it" names an option, not a whole command
            assert not {"--data", "--calibrate", "--out"} & set(words)
        else:
            raise


def test_the_readme_s_python_runs(monkeypatch, capsys):
    """As it stands, on a few images, with one pass in place of the default's many."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    [program] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    [shown] = re.findall(r"^```python\n.*?^```\n\n```\n(.*?)\n```", text, re.DOTALL | re.MULTILINE)
    every = tasks.list_images
    monkeypatch.setattr(tasks, "list_images", lambda name: tasks.limit(every(name), 8))
    one_pass = Preset("one pass", settings={"passes": ("nearest",), "budget": 0.2, "energy": "binary"})
    monkeypatch.setitem(PRESETS, DEFAULT, one_pass)
    exec(compile(program, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert re.sub(r"[\d.]+", "0", printed.strip()) == re.sub(r"[\d.]+", "0", shown)


def test_the_readme_shows_what_the_demo_prints():
    """Line for line but for figures: the words come from the code."""
    from onespike.energy.columns import meanings

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, meaning in meanings().items():  # long ones go on in the next line
        assert re.search(rf"^{name} +[\d.–]+ +.*{re.escape(meaning[:60])}", text, re.MULTILINE), name
    for name in typer.main.get_command(app).commands:
        assert f"onespike {name}" in text, name
