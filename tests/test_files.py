"""Folders and files that are there whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys

import pytest

from onespike.errors import LoadError, UsageError
from onespike.files import atomic_directory, sha256, write_atomically


def test_a_folder_appears_when_the_block_ends(tmp_path):
    target = tmp_path / "new" / "deeper" / "run"
    with atomic_directory(target) as folder:
        (folder / "a.json").write_text("{}")
        assert not target.exists()
    assert [p.name for p in target.iterdir()] == ["a.json"]
    assert [p.name for p in target.parent.iterdir()] == ["run"]
    probe = tmp_path / "probe"
    probe.mkdir()
    assert target.stat().st_mode == probe.stat().st_mode


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_what_exists_is_not_touched(tmp_path, kind):
    target = tmp_path / "run"
    if kind == "folder":
        target.mkdir()
    elif kind == "file":
        target.write_text("old")
    else:
        target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError) as error, atomic_directory(target):
        pytest.fail("the block must not run")
    assert str(error.value) == f"{target} exists. Choose another --out or remove it."
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("exception", [KeyboardInterrupt, ValueError, SystemExit])
def test_nothing_is_left_after_a_failure(tmp_path, exception):
    def fail():
        with atomic_directory(tmp_path / "new" / "run") as folder:
            (folder / "a.json").write_text("{}")
            raise exception

    with pytest.raises(exception):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_appears_meanwhile_is_kept(tmp_path):
    with pytest.raises(UsageError, match="exists"), atomic_directory(tmp_path / "run"):
        (tmp_path / "run").mkdir()
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


MESSAGES = {
    errno.ENOSPC: "the disk is full. Free some space or choose another place.",
    errno.EFBIG: "the disk is full. Free some space or choose another place.",
    errno.EACCES: "writing there is not permitted. Change the permissions or choose another place.",
    errno.EROFS: "writing there is not permitted. Change the permissions or choose another place.",
}


@pytest.mark.parametrize("code", MESSAGES)
def test_a_place_that_cannot_be_written(tmp_path, code):
    target = tmp_path / "run"
    with pytest.raises(LoadError) as error, atomic_directory(target):
        raise OSError(code, os.strerror(code))
    assert str(error.value) == f"{target}: {MESSAGES[code]}"
    assert list(tmp_path.iterdir()) == []


def test_other_errors_pass_through(tmp_path):
    with pytest.raises(OSError, match="not mine"), atomic_directory(tmp_path / "run"):
        raise OSError(errno.EIO, "not mine")


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file" / "run", tmp_path / "file" / "deeper" / "run"):
        with pytest.raises(LoadError) as error, atomic_directory(target):
            pytest.fail("the block must not run")
        assert str(error.value) == f"{target}: a part of this path is a file. Choose another place."


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from onespike.errors import LoadError
from onespike.files import atomic_directory, write_atomically

resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
place = Path(sys.argv[1])
for write in (
    lambda folder: save_file({"a": torch.zeros(100_000)}, folder / "a.safetensors"),
    lambda folder: (folder / "a.bin").write_bytes(bytes(100_000)),
):
    try:
        with atomic_directory(place / "run") as folder:
            write(folder)
    except LoadError as error:
        print(error)
try:
    write_atomically(place / "a.json", bytes(100_000))
except LoadError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the size of files cannot be limited there")
def test_a_disk_that_really_refuses(tmp_path):
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    run = f"{tmp_path / 'run'}: {MESSAGES[errno.EFBIG]}"
    assert output.splitlines() == [run, run, f"{tmp_path / 'a.json'}: {MESSAGES[errno.EFBIG]}"]
    assert list(tmp_path.iterdir()) == []


def test_one_file(tmp_path):
    target = tmp_path / "new" / "a.json"
    write_atomically(target, "λ")
    write_atomically(target, "θ")
    assert target.read_bytes() == "θ".encode()
    write_atomically(target, b"\x00")
    assert target.read_bytes() == b"\x00"
    assert [p.name for p in target.parent.iterdir()] == ["a.json"]


def test_a_folder_is_not_replaced_by_a_file(tmp_path):
    with pytest.raises(LoadError) as error:
        write_atomically(tmp_path, "λ")
    assert str(error.value) == f"{tmp_path}: this is a folder. Give the name of a file."
    assert not list(tmp_path.parent.glob(".*.partial"))


def test_an_old_file_survives_a_failed_write(tmp_path, monkeypatch):
    target = tmp_path / "a.json"
    write_atomically(target, "old")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_sha256(tmp_path):
    data = bytes(range(256)) * 5000
    (tmp_path / "a").write_bytes(data)
    assert sha256(tmp_path / "a") == hashlib.sha256(data).hexdigest()
