"""The wheel and the source distribution are whole, small, and enough with torch alone; `make` installs what it needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOLDS = (
    "py.typed", "presets.toml", "cli/words.toml", "studies/reproduce/paper.toml", "kernels/native.c",
    "kernels/dot.h", "energy/prices/horowitz-45nm.json", "reports/templates/live.js", "reports/templates/report.html",
    "adapters/bundled/cifar10-vit.safetensors", "tasks/bundled/cifar10_test.png",
)  # fmt: skip

INSTALLED = """
import importlib.metadata, re, sys

def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()

installed, left = set(), sys.argv[1].split()
while left:
    name = plain(left.pop())
    try:
        needs = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        continue
    if name not in installed:
        installed.add(name)
        left += [re.match(r"[\\w.-]+", need)[0] for need in needs if "extra ==" not in need]
packages = importlib.metadata.packages_distributions()
packages.pop("onespike", None)
hidden = {name for name, owners in packages.items() if not set(map(plain, owners)) & installed}
assert "mypy" in hidden

class Present:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, path, target)

sys.meta_path = [Present(finder) for finder in sys.meta_path]
"""
"""Hides every package but those of the first argument and what they need."""

ALONE = """
assert {"timm", "typer", "numpy", "pydantic"} <= hidden
import torch
from torch import nn
import onespike

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
batches = torch.randn(64, 8).split(16)
snn = onespike.spike(model, batches, "sformer", passes=("nearest", "allocate"), budget=0.5)
result = onespike.evaluate(model, snn, [(batches[0], None)])
assert onespike.verify(snn, batches[0]).ok and 0 < result.ledger.ratio("counts") < 1
try:
    from onespike.cli import main
    sys.argv = ["onespike", "--version"]
    main()
except SystemExit as end:
    assert end.code == 2  # one line that names the extra
print(onespike.__file__)
"""

COMMANDS = """
from onespike.cli import main
for words in ("--help", "list neurons", "reproduce theorems --trials 1"):
    sys.argv = ["onespike", *words.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code
"""

DEMO = """
from onespike.reports import record
from onespike import runs
choose = runs.choose
record.DRAWN_SCALES = ()
runs.choose = lambda data, count: choose(data, 6)
runs.choose_labeled = lambda loaded, data, count=6: choose(data, 6)
sys.argv = ["onespike", "demo", "--out", sys.argv[2]]
from onespike.cli import main
main()
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A wheel and a source distribution, made from a copy of what git would have."""
    folder = tmp_path_factory.mktemp("package")
    source, out = folder / "source", folder / "dist"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    lines = "import setuptools.build_meta as b; b.build_sdist('../dist'); b.build_wheel('../dist')"
    out.mkdir()
    done = subprocess.run([sys.executable, "-c", lines], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def test_both_hold_everything(built):
    [wheel], [archive] = built.glob("*.whl"), built.glob("*.tar.gz")
    held = set(zipfile.ZipFile(wheel).namelist())
    files = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src/onespike").rglob("*.py")}
    assert files <= held and {f"onespike/{name}" for name in HOLDS} <= held
    assert not any(name.startswith(("tests", "docs", "benchmarks")) for name in held)
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {f"src/onespike/{name}" for name in HOLDS} | {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert wheel.stat().st_size < 12e6 and archive.stat().st_size < 12e6


def with_installed(script: str, packages: set[str], *words: str, **more) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", INSTALLED + script, " ".join(packages), *words]
    done = subprocess.run(command, capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stderr
    return done


def test_the_wheel_runs_with_torch_alone(built, tmp_path):
    [wheel] = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path)  # which is what installing a pure wheel does
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = with_installed(ALONE, {"torch"}, env=environment, cwd=tmp_path)
    assert Path(done.stdout.split()[-1]).is_relative_to(tmp_path)
    assert "pip install 'onespike[all]'" in done.stderr


def test_commands_that_load_no_network_need_no_library_of_networks():
    assert "dual-mtn" in with_installed(COMMANDS, {"torch", "typer", "rich"}).stdout


def requirements(extra: str) -> set[str]:
    """Names of the packages of an extra, through other extras of ours."""
    names = set()
    for line in PROJECT["optional-dependencies"][extra]:
        if ours := re.match(r"onespike\[(.*)\]", line):
            names |= {name for other in ours[1].split(",") for name in requirements(other)}
        else:
            names.add(re.match(r"[\w.-]+", line)[0])
    return names


def test_the_demo_runs_with_what_its_extra_installs(tmp_path):
    done = with_installed(DEMO, {"torch", *requirements("demo")}, str(tmp_path / "out"))
    assert "report.html" in done.stdout


def test_make_installs_the_demo_first_and_the_cpu_builds_of_the_constraints():
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "TORCH"))}

    def dry(*words: str) -> str:
        command = ["make", "--always-make", "--dry-run", *words]
        return subprocess.run(
            command, cwd=ROOT, env=inherited, capture_output=True, text=True, check=True
        ).stdout

    demo, test = dry("demo"), dry("test")
    assert "-e '.[demo]'" in demo and "test" not in demo and "+cpu" not in demo
    assert test.index("-e '.[demo]'") < test.index("-e '.[all,test,docs]'")
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    demo = dry("demo", "TORCH=cpu", "TORCH_INDEX=https://index.example/cpu")
    wanted = f"https://index.example/cpu torch=={pins['torch']}+cpu torchvision=={pins['torchvision']}+cpu"
    assert demo.index(wanted) < demo.index("-e '.[demo]'")
