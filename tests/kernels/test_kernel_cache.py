"""Compiled kernels are loaded only from where nobody else can write, and only as they were compiled; a wheel brings its own."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
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
COMPILER = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") or ""
PLANTED = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void run(void) { fclose(fopen(getenv("ONESPIKE_PLANTED"), "w")); }
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Path:
    """A library that leaves a file behind when it is loaded, and has none of the kernels."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.c").write_text(PLANTED)
    command = [COMPILER, "-shared", "-fPIC", str(folder / "planted.c"), "-o", str(folder / "planted.so")]
    subprocess.run(command, check=True)
    return folder / "planted.so"


@pytest.fixture
def ran(tmp_path, monkeypatch) -> Path:
    """What a planted library leaves behind."""
    monkeypatch.setenv("ONESPIKE_PLANTED", str(tmp_path / "ran"))
    return tmp_path / "ran"


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> bytes:
    """The kernels, compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("real")))
        build._load()
        [file] = build.cache_folder().glob("*.so")
        return file.read_bytes()


@pytest.fixture
def compiled(tmp_path, monkeypatch, real) -> list[Path]:
    """An empty cache in a folder that is ours alone, and one entry for each time that the compiler is called."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    calls = []

    def compile_(compiler: str, flags: tuple[str, ...], target: Path) -> None:
        calls.append(target)
        target.write_bytes(real)
        target.chmod(0o775)  # as a umask of 002 leaves it

    monkeypatch.setattr(build, "compile_", compile_)
    return calls


def plant(source: Path) -> Path:
    """Put a library in the place of the kernels, under a name that says its own digest."""
    [target] = build.cache_folder().glob("*.so")
    key = target.stem.split("-")[1]
    target.unlink()
    return Path(shutil.copyfile(source, target.with_name(build.library_name(key, source.read_bytes()))))


def works(library: ctypes.CDLL) -> bool:
    sums = (ctypes.c_double * 2)()
    library.onespike_moments((ctypes.c_float * 2)(1, 2), 2, sums)
    return list(sums) == [3, 5]


def test_kept_once_and_for_us_alone(compiled, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a" / "b"))
    before = os.umask(0)
    try:
        assert works(build._load()) and works(build._load())
    finally:
        os.umask(before)
    assert len(compiled) == 1
    [file] = build.cache_folder().iterdir()
    places = [tmp_path / "a", tmp_path / "a" / "b", build.cache_folder(), file]
    assert [place.stat().st_mode & 0o777 for place in places] == [0o700] * 4


@pytest.mark.parametrize("place", ["folder", "home", "file"])
@pytest.mark.parametrize("reason", ["others may write here", "it belongs to another user"])
def test_what_others_could_have_put_there_is_not_loaded(
    reason: str, place: str, compiled, planted, ran, monkeypatch, caplog
) -> None:
    build._load()
    file, real_stat = plant(planted), os.lstat
    opened = {"folder": file.parent, "home": file.parent.parent, "file": file}[place]

    def foreign(path, **options):
        status = list(real_stat(path, **options))
        status[4] += Path(path) == opened
        return os.stat_result(status)

    if reason == "others may write here":
        opened.chmod(0o777)
    else:
        monkeypatch.setattr(os, "lstat", foreign)
    with caplog.at_level("INFO", "onespike"):
        assert works(build._load())
    assert not ran.exists()
    assert len(compiled) == 2
    assert f"{opened}: {reason}" in caplog.text


def test_a_sticky_folder_of_root_is_a_place_for_our_own(compiled, tmp_path, monkeypatch) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared))
    build._load(), build._load()
    assert len(compiled) == 1


@pytest.mark.parametrize("damage", ["short", "other", "empty", "link", "no kernels"])
def test_a_damaged_library_is_compiled_again(damage: str, compiled, planted, ran, tmp_path) -> None:
    build._load()
    [file] = build.cache_folder().glob("*.so")
    content = file.read_bytes()
    file.unlink()
    if damage == "no kernels":
        file.write_bytes(content)
        plant(planted).chmod(0o700)
    elif damage == "link":
        shutil.copyfile(planted, tmp_path / "elsewhere.so")
        file.symlink_to(tmp_path / "elsewhere.so")
    else:
        damaged = {"short": content[: len(content) // 2], "other": planted.read_bytes(), "empty": b""}
        file.write_bytes(damaged[damage])
        file.chmod(0o700)
    assert works(build._load())
    assert ran.exists() == (damage == "no kernels"), "that one was ours and whole, so it was tried"
    assert len(compiled) == 2
    [file] = build.cache_folder().iterdir()
    assert file.read_bytes() == content and not file.is_symlink()


@pytest.mark.parametrize("reason", ["a file is in the way", "the disk is read-only"])
def test_a_cache_that_cannot_be_written_is_done_without(reason: str, compiled, tmp_path, monkeypatch) -> None:
    if reason == "the disk is read-only":
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    else:
        (tmp_path / "file").write_bytes(b"")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert works(build._load())
    assert not compiled[0].exists(), "it is removed as soon as it is loaded"


def test_two_at_once(compiled, monkeypatch) -> None:
    barrier, one, found = threading.Barrier(2), build.compile_, []

    def together(*words) -> None:
        barrier.wait(60)
        one(*words)
        barrier.wait(60)

    monkeypatch.setattr(build, "compile_", together)
    threads = [threading.Thread(target=lambda: found.append(works(build._load()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True, True]
    assert len(compiled) == 2 and len(list(build.cache_folder().iterdir())) == 1


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
