"""The wheel and the source distribution: whole, small, and enough with torch alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HOLDS = (
    "py.typed",
    "kernels/native.c",
    "kernels/dot.h",
    "energy/prices/horowitz-45nm.json",
    "reports/templates/report.html",
    "reports/templates/live.js",
    "adapters/bundled/cifar10-vit.safetensors",
    "tasks/bundled/cifar10_test.png",
)

ALONE = """
import importlib.metadata, re, sys

own, left = set(), ["torch"]
while left:
    name = re.sub(r"[-_.]+", "-", left.pop()).lower()
    try:
        needs = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        continue
    if name not in own:
        own.add(name)
        left += [re.match(r"[\\w.-]+", need)[0] for need in needs if "extra ==" not in need]
packages = importlib.metadata.packages_distributions()
packages.pop("onespike", None)
hidden = {n for n, of in packages.items() if not {re.sub(r"[-_.]+", "-", d).lower() for d in of} & own}
assert {"timm", "typer", "numpy", "pydantic"} <= hidden

class Torch:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path = [Torch(finder) for finder in sys.meta_path]
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


def test_the_wheel_runs_with_torch_alone(built, tmp_path):
    [wheel] = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path)  # which is what installing a pure wheel does
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.split()[-1]).is_relative_to(tmp_path)
    assert "pip install 'onespike[all]'" in done.stderr


def test_the_supported_versions_are_those_that_ci_tests():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    start = "Programming Language :: Python :: 3."
    named = [c.removeprefix(start) for c in project["classifiers"] if c.startswith(start)]
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    listed = ", ".join(f'"3.{n}"' for n in named)
    assert f"python: [{listed}]" in workflow
    assert project["requires-python"] == f">=3.{named[0]}"
