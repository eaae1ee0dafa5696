"""Every command ends with a command that can be typed as it is printed."""

from __future__ import annotations

import shlex
import shutil

import pytest
import typer.main
from command_line import CALIBRATION, TEST, VIT

from onespike.cli.app import app

LIMIT = ("--data", TEST, "--limit", 4)


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


def test_from_a_network_to_its_page(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = (f"convert {VIT} --preset sformer --calibrate {CALIBRATION} --limit 4 --out", "a run")
    words = following(cli(*words))
    assert words == ["onespike", "evaluate", "a run", "--data", TEST]
    words = following(cli(*words[1:], "--limit", 4))
    assert words == ["onespike", "report", "a run", *map(str, LIMIT)]
    words = following(cli(*words[1:]))
    assert words == ["onespike", "doctor", "a run", *map(str, LIMIT)]
    found = cli(*words[1:])
    words = following(found)
    parsed(words)
    assert f"try: {shlex.join(words)}" in found.out or words[1] == "report"


WORDS = {
    "list models": ("list", "models", "cifar10"),
    "list presets": ("list", "presets"),
    "list passes": ("list", "passes"),
    "theorems": ("reproduce", "theorems", "--trials", 1),
    "fields": ("list", "fields"),
    "inspect": ("inspect", "RUN"),
    "inspect --recipe": ("inspect", "RUN", "--recipe"),
    "report without images": ("report", "RUN"),
    "two runs": ("report", "RUN", "RUN", *LIMIT),
    "reproduce": ("reproduce", "list"),
    "doctor --passes": ("doctor", "RUN", *LIMIT, "--passes", "center"),
}


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_the_next_command_is_one(cli, tmp_path, monkeypatch, vit_run, words):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(vit_run, "copy")
    parsed(following(cli(*("copy" if word == "RUN" else word for word in words))))


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


def test_a_command_that_fails_names_no_other(cli, tmp_path):
    assert "next: " not in cli("inspect", tmp_path).err


def test_the_live_page_ends_by_ctrl_c(cli, vit_run, monkeypatch):
    from onespike.reports.server import LiveServer

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(LiveServer, "serve_forever", interrupted)
    result = cli("serve", vit_run, "--address", 0)
    assert result.out.startswith(f"serving {vit_run} at http://127.0.0.1:") and "warning" not in result.err
    parsed(following(result))
    assert "other machines can reach" in cli("serve", vit_run, "--address", "0.0.0.0:0").err
