"""A wheel holds compiled kernels, and finds them where there is no compiler; sources stay without them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from onespike.kernels import build, compiler

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.skipif(build.library() is None, reason=f"no kernels here: {build.note()}"),
    pytest.mark.processes,
]


def test_a_wheel_needs_no_compiler(tmp_path: Path) -> None:
    source, package = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    command = [
        sys.executable,
        *["-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-q", "-w", "out"],
    ]
    environment = {**os.environ, "ONESPIKE_PREBUILT": "1"}
    subprocess.run(command, cwd=source, env=environment, check=True, capture_output=True)
    [wheel] = (source / "out").glob("*.whl")
    assert "-py3-none-" in wheel.name and not wheel.name.endswith("-any.whl")
    zipfile.ZipFile(wheel).extractall(package)
    kept = {**os.environ, "PYTHONPATH": str(package), "CC": "no-compiler", "XDG_CACHE_HOME": str(tmp_path)}
    script = [sys.executable, ROOT / "benchmarks" / "installed_kernels.py"]
    run = subprocess.run(script, env=kept, capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout.startswith("kernels: native; exact: "), run.stdout + run.stderr
    assert not compiler.PREBUILT.exists()


def test_a_library_that_does_not_load_is_compiled_again(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    name = compiler.key(compiler.flags_for(torch.backends.cpu.get_cpu_capability()))
    wheel = tmp_path / f"{name}.so"
    wheel.write_bytes(b"no library")
    with caplog.at_level("INFO", "onespike"):
        assert build._load() is not None
    assert f"{wheel} does not load, and the kernels are compiled" in caplog.text and wheel.exists()
