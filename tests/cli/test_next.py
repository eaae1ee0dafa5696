"""Every command ends with a command that can be typed as it is printed."""

from __future__ import annotations

import shlex
import shutil

import pytest
import typer.main
from command_line import CONVERT, TEST

from onespike.cli.app import app

LIMIT = f"--data {TEST} --limit 4"


def following(result) -> list[str]:
    assert result.code == 0, result.err
    start, words = result.err.splitlines()[-1].split(": ", 1)
    assert start == "next" and "next: " not in result.out
    return shlex.split(words)


def parsed(words: list[str]) -> None:
    """Options and arguments are those that the command has; places to write to can be written."""
    group = typer.main.get_command(app)
    assert words[0] == "onespike"
    group.commands[words[1]].make_context(words[1], words[2:])


WORDS = {
    f"{CONVERT} --limit 4 --out new": f"evaluate new --data {TEST}",
    f"evaluate RUN {LIMIT}": f"report RUN {LIMIT}",
    f"report RUN {LIMIT}": f"doctor RUN {LIMIT}",
    f"doctor RUN {LIMIT}": "",
    f"doctor RUN {LIMIT} --passes center": "",
    f"report RUN RUN {LIMIT}": "",
    "report RUN": "",
    "inspect RUN": "",
    "list models cifar10": "",
    "list presets": "",
    "list fields": "",
    "reproduce list": "",
    "reproduce theorems --trials 1": "",
}
"""Command → how the next one begins."""


@pytest.mark.parametrize("words", WORDS)
def test_the_next_command_is_one(cli, tmp_path, monkeypatch, vit_run, words):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(vit_run, "a run")
    printed = following(cli(words.replace("RUN", "'a run'")))
    parsed(printed)
    assert shlex.join(printed).startswith(f"onespike {WORDS[words].replace('RUN', repr('a run'))}")


def test_the_recipe_of_a_run_is_converted_again(cli, tmp_path, vit_run):
    shutil.copytree(vit_run, tmp_path / "run")
    words = following(cli("inspect", tmp_path / "run", "--recipe"))
    assert words[-2:] == ["--out", str(tmp_path / "run-2")]
    cli(*words[1:]).good()
    for name in ("thresholds.safetensors", "weights.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "run-2" / name).read_bytes()


def test_a_listed_neuron_is_converted_with(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = following(cli("list", "neurons"))
    cli(*words[1:], "--limit", 2).good()


def test_the_live_page_ends_by_ctrl_c(cli, vit_run, monkeypatch):
    from onespike.reports.live import LiveServer

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(LiveServer, "serve_forever", interrupted)
    result = cli("serve", vit_run, "--address", 0)
    assert result.out.startswith(f"serving {vit_run} at http://127.0.0.1:") and "warning" not in result.err
    parsed(following(result))
    assert "other machines can reach" in cli("serve", vit_run, "--address", "0.0.0.0:0").err
