"""Help that fits a terminal and ends with an example to copy; lists of names."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
import typer.testing

import onespike
from onespike.cli.app import app
from onespike.cli.options import EARLIER_COMMANDS

COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands]


def help_page(*words: str) -> list[str]:
    result = typer.testing.CliRunner().invoke(
        app, [*words, "--help"], terminal_width=80, prog_name="onespike"
    )
    assert result.exit_code == 0
    return result.output.splitlines()


def test_the_overview_names_every_command_in_full():
    page = help_page()
    start = page.index("Commands:") + 1
    assert [line.split()[0] for line in page[start:]] == COMMANDS
    assert not any(line.endswith("...") for line in page[start:])
    assert "Commands:" in typer.testing.CliRunner().invoke(app, [], prog_name="onespike").output


@pytest.mark.parametrize("command", COMMANDS)
def test_each_page_fits_and_ends_with_examples(command):
    page = help_page(command)
    assert all(len(line) <= 80 for line in page)
    start = next(i for i, line in enumerate(page) if line.strip() in ("Example:", "Examples:"))
    text = "\n".join(page[start + 1 :]).replace("\\\n", " ")
    for example in text.splitlines():
        words = shlex.split(example)
        assert words[:2] == ["onespike", command]
        for word in words[2:]:
            if word.startswith("--"):
                assert any(line.strip().startswith(word) for line in page[:start]), word


def test_there_are_few_words_to_learn():
    parameters = [p for c in typer.main.get_command(app).commands.values() for p in c.params]
    options = {"--help", "--version", *(o for p in parameters for o in p.opts if o.startswith("--"))}
    assert len(COMMANDS) <= 14 and len(options) <= 50, sorted(options)


@pytest.mark.parametrize("word", EARLIER_COMMANDS)
def test_commands_of_earlier_versions_name_their_successor(cli, word):
    assert cli(word, "run").message() == f"`onespike {word}` is now: {EARLIER_COMMANDS[word]}"


def test_lists(cli):
    networks = cli("list", "models", "cifar10")
    assert networks.out.splitlines() == ["bundled:cifar10-resnet18", "bundled:cifar10-vit"]
    every = cli("list", "models").out.splitlines()
    assert {"timm:test_vit", "torchvision:resnet18", "transformers:ID-OR-DIR"} <= set(every)
    assert [line.split()[0] for line in cli("list", "neurons", "dual").out.splitlines()] == [
        "dual-if",
        "dual-mtn",
    ]
    assert "\n--set percentile=" in cli("list", "fields").out


def test_a_library_that_is_absent_does_not_hide_the_others(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    listed = cli("list", "models", "resnet18").good()
    assert {"timm:resnet18", "bundled:cifar10-resnet18"} <= set(listed.out.splitlines())
    assert listed.err == (
        "note: the list of torchvision models: it needs torchvision. "
        "Install it with: pip install 'onespike[torchvision]'\n"
        "next: onespike convert bundled:cifar10-vit --calibrate bundled:cifar10-calibration --out run\n"
    )


def test_the_version(cli):
    shown = cli("--version")
    assert (shown.code, shown.out, shown.err) == (0, f"onespike {onespike.__version__}\n", "")


WITHOUT = """
import sys

for package in ("torch", "numpy", "PIL", "rich", "yaml"):
    sys.modules[package] = None  # an import of it raises ImportError
from onespike.cli import main

sys.argv = ["onespike", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("command", [(), ("convert",)], ids=" ".join)
def test_help_needs_no_torch(command):
    words = [sys.executable, "-c", WITHOUT, *command, "--help"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")
