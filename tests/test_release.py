"""What a release is made of: one version, a workflow whose jobs exist, images whose commands can be typed."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer.main
import yaml

import onespike
from onespike.cli.app import app

ROOT = Path(__file__).parents[1]


def test_there_is_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"]
    assert onespike.__version__ == project == citation


def test_a_release_is_published_by_identity_after_all_else():
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))
    jobs = workflow["jobs"]
    before, names = {"publish"}, []
    while before:
        name = before.pop()
        needs = jobs[name].get("needs", [])
        names.append(name)
        before |= {needs} if isinstance(needs, str) else {*needs}
    assert {"version", "wheels", "source", "installed"} <= {*names}
    assert jobs["publish"]["permissions"] == {"id-token": "write"} and jobs["publish"]["if"]
    assert "password" not in (ROOT / ".github/workflows/release.yml").read_text("utf-8")
    scripts = re.findall(r"(?:benchmarks/\S+\.py|make \w+|mkdocs\.\S+\.yml)", json.dumps(jobs))
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert scripts
    assert [s for s in scripts if not (ROOT / s).is_file() and s.removeprefix("make ") not in targets] == []


def commands(file: Path) -> list[list[str]]:
    """Every command of onespike that a Dockerfile runs."""
    text = re.sub(r"\\\n\s*", "", file.read_text("utf-8"))
    runs = [shlex.split(line) for line in re.findall(r"^RUN (onespike .*)", text, re.MULTILINE)]
    start = [json.loads(line) for line in re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])", text, re.MULTILINE)]
    return [*runs, [word for words in start for word in words]]


@pytest.mark.parametrize("folder", [".", "examples/space"])
def test_an_image_runs_commands_that_exist(folder):
    found = commands(ROOT / folder / "Dockerfile")
    assert found
    for program, name, *words in found:
        assert program == "onespike"
        typer.main.get_command(app).commands[name].make_context(name, words)


def test_a_space_states_the_port_that_its_image_serves():
    text = (ROOT / "examples/space/README.md").read_text("utf-8")
    head = yaml.safe_load(text.split("---")[1])
    image = (ROOT / "examples/space/Dockerfile").read_text("utf-8")
    assert head["sdk"] == "docker" and f"0.0.0.0:{head['app_port']}" in image
