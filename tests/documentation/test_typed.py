"""Every command that README and documentation name can be typed, and the README says what the commands say."""

from __future__ import annotations

import re
import shlex

import pytest
import typer.main
from pages import PAGES, ROOT, commands

from onespike.cli.app import app

NAMES = {"NAME": "onnx", "FORMAT": "onnx", "N": "4", "COLUMN": "binary"}
"""What stands for words that a reader replaces, where a command checks them at once."""
ALL = list({command: None for page in PAGES for command in commands(page)})


@pytest.mark.parametrize("command", ALL, ids=[command.line[:60] for command in ALL])
def test_it_can_be_typed(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command.line)
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
        assert whole(words[words.index("onespike") + 1 :]) or command.inline, "it misses what it needs"


def whole(words: list[str]) -> bool:
    """The command exists and has these options; whether nothing that it needs is missing."""
    group = typer.main.get_command(app)
    if words[0].startswith("--"):
        assert words[0] in ("--version", "--help")
        return True
    command = group.commands[words[0]]
    options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
    assert [w for w in words if w.startswith("--") and w not in options] == []
    try:
        command.make_context(words[0], [NAMES.get(word, word) for word in words[1:]])
    except Exception as error:  # typer has exceptions of its own
        if type(error).__name__ == "Exit":
            assert "--help" in words
        elif type(error).__name__ == "MissingParameter":
            return False
        else:
            raise
    return True
