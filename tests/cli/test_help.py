"""Help that fits a terminal and ends with an example to copy."""

from __future__ import annotations

import shlex

import pytest
import typer.testing

from onespike.cli.app import app

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
    assert {"demo", "convert", "evaluate", "inspect", "verify", "list"} <= set(COMMANDS)
    assert "  Start with: onespike demo" in page
    assert all(line.endswith(".") and not line.endswith("...") for line in page[start:])


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


def test_the_words_of_the_manual():
    """The options that the documentation promises, by name."""
    promised = {
        "convert": "--calibrate --out --weights --preset --scale --percentile --levels --include --exclude --limit "
        "--random-weights --pretrained --reference-weights",
        "evaluate": "--data --limit --batch-size --device --json",
    }
    for command, options in promised.items():
        page = "\n".join(help_page(command))
        assert all(f"\n  {option} " in page for option in options.split())


def test_no_words_show_the_overview():
    result = typer.testing.CliRunner().invoke(app, [], prog_name="onespike")
    assert "Commands:" in result.output
