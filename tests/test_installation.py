"""`make` installs for the demo what the demo needs, and the rest for the tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

DEMO = """
import importlib.metadata, re, sys

def closure(names):
    found, left = set(), list(names)
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name not in found:
            try:
                needs = importlib.metadata.requires(name) or []
            except importlib.metadata.PackageNotFoundError:
                continue
            found.add(name)
            left += [re.match(r"[\\w.-]+", need)[0] for need in needs if "extra ==" not in need]
    return found

own = closure(sys.argv[1].split())

class Present:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        owners = {re.sub(r"[-_.]+", "-", d).lower() for d in packages.get(name, ())}
        return self.finder.find_spec(name, path, target) if not owners or owners & own else None

packages = importlib.metadata.packages_distributions()
packages.pop("onespike", None)
assert "mypy" not in own and "mypy" in packages
sys.meta_path = [Present(finder) for finder in sys.meta_path]

from onespike.studies import demo
from onespike import runs
choose = runs.choose
demo.DEMO_SCALES = (1.0,)
runs.choose = lambda data, count: choose(data, 6)
sys.argv = ["onespike", "demo", "--out", sys.argv[2]]
from onespike.cli import main
main()
"""


def requirements(extra: str) -> set[str]:
    """Names of the packages of an extra, through other extras of ours."""
    found = set()
    for line in EXTRAS[extra]:
        if own := re.match(r"onespike\[(.*)\]", line):
            found |= {name for other in own[1].split(",") for name in requirements(other)}
        else:
            found.add(re.match(r"[\w.-]+", line)[0])
    return found


def test_the_demo_runs_with_what_its_extra_installs(tmp_path) -> None:
    words = [" ".join({"torch", *requirements("demo")}), str(tmp_path / "out")]
    run = subprocess.run([sys.executable, "-c", DEMO, *words], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "overview.png" in run.stdout


def dry(target: str, *settings: str) -> str:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "TORCH"))}
    command = ["make", "--always-make", "--dry-run", target, *settings]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_make_demo_installs_the_demo_and_make_test_the_rest() -> None:
    demo, test = dry("demo"), dry("test")
    assert "-e '.[demo]'" in demo and "test" not in demo and "+cpu" not in demo
    assert test.index("-e '.[demo]'") < test.index("-e '.[all,test,docs]'")
    assert test.count("-m venv") == 1


def test_the_cpu_builds_of_torch_and_torchvision_are_those_of_the_constraints() -> None:
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    demo = dry("demo", "TORCH=cpu", "TORCH_INDEX=https://index.example/cpu")
    wanted = f"https://index.example/cpu torch=={pins['torch']}+cpu torchvision=={pins['torchvision']}+cpu"
    assert wanted in demo
    assert demo.index(wanted) < demo.index("-e '.[demo]'")
