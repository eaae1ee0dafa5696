"""Folders and files that are there whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from onespike.errors import LoadError, UsageError
from onespike.runtime.atomic import (
    atomic_directory,
    sha256,
    try_file,
    try_folder,
    try_new_folder,
    write_atomically,
)


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
from onespike.runtime.atomic import atomic_directory, write_atomically

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


posix = pytest.mark.skipif(sys.platform == "win32", reason="devices, locks and links of POSIX")


@posix
def test_links_are_written_through(tmp_path):
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link.json", tmp_path / "there" / "a.json"
    link.symlink_to("there/a.json")
    for text in ("made", "replaced"):
        try_file(link)
        write_atomically(link, text)
        assert link.is_symlink() and target.read_text() == text
    assert [p.name for p in target.parent.iterdir()] == ["a.json"]


@posix
def test_devices_are_written_through(tmp_path):
    try_file(Path("/dev/null"))
    write_atomically(Path("/dev/null"), "gone")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(LoadError, match=r"^/dev/full: the disk is full\."):
        write_atomically(Path("/dev/full"), "refused")
    assert Path("/dev/full").is_char_device()
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    try_file(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    write_atomically(pipe, "λ" * 100_000)
    reader.join()
    assert found == [("λ" * 100_000).encode()] and pipe.is_fifo()


@posix
def test_a_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # their paths must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        for attempt in (try_file, lambda path: write_atomically(path, "")):
            with pytest.raises(LoadError) as error:
                attempt(Path("s"))
            assert str(error.value) == "s: this is neither a file nor a pipe. Choose another place."
    assert Path("s").is_socket()


SPEAKING = """
import sys
from pathlib import Path
from onespike.runtime.atomic import try_file, write_atomically

place = Path(sys.argv[1])
print("before")
try_file(place)
write_atomically(place, "written\\n")
print("after")
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="there is no /proc")
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
def test_standard_output_keeps_what_was_printed(tmp_path, name):
    (tmp_path / "link").symlink_to("/dev/stdout")
    with (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", SPEAKING, name], stdout=out, check=True, cwd=tmp_path)
    assert (tmp_path / "out").read_text() == "before\nwritten\nafter\n"


HELD = """
import sys, time
from pathlib import Path
from onespike.runtime.atomic import atomic_directory
from onespike.runtime.atomic import _unfinished as unfinished

with atomic_directory(Path(sys.argv[1]) / "run") as folder, unfinished(Path(sys.argv[1]) / "file"):
    (folder / "a").write_text("a")
    print("ready", flush=True)
    time.sleep(600)
"""


@posix
def test_what_a_killed_process_left_is_cleared_and_what_a_living_one_holds_is_not(tmp_path):
    command = [sys.executable, "-c", HELD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            held = sorted(tmp_path.glob(".*.partial"))
            assert len(held) == 2
            write_atomically(tmp_path / "a.json", "{}")
            try_new_folder(tmp_path / "run")
            assert sorted(tmp_path.glob(".*.partial")) == held
        finally:
            process.send_signal(signal.SIGKILL)
    write_atomically(tmp_path / "a.json", "{}")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_trying_leaves_nothing(tmp_path):
    for attempt in (try_file, try_folder, try_new_folder):
        attempt(tmp_path / "new" / "deeper" / "a")
        assert list(tmp_path.iterdir()) == []
    old = tmp_path / "old.json"
    old.write_text("old")
    try_file(old)
    try_file(None)
    try_folder(tmp_path)
    assert old.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["old.json"]


def test_trying_finds_what_writing_would_find(tmp_path):
    (tmp_path / "file").touch()
    messages = {
        (try_file, tmp_path): "this is a folder. Give the name of a file.",
        (try_folder, tmp_path / "file"): "this is a file. Give the name of a folder.",
        (try_file, tmp_path / "file" / "a"): "a part of this path is a file. Choose another place.",
        (try_new_folder, tmp_path / "file" / "a"): "a part of this path is a file. Choose another place.",
        (try_file, tmp_path / ("a" * 300)): "this name is too long. Choose a shorter one.",
    }
    for (attempt, place), message in messages.items():
        with pytest.raises(LoadError) as error:
            attempt(place)
        assert str(error.value) == f"{place}: {message}"


@contextmanager
def as_nobody():
    """Permissions do not bind root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@posix
def test_a_folder_that_may_not_be_written(tmp_path):
    place = tmp_path / "closed"
    place.mkdir()
    (place / "a.json").write_text("old")
    for folder in (*list(tmp_path.parents)[:-1], tmp_path):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)  # nobody must get here to be refused
    place.chmod(0o555)
    for attempt in (try_file, try_folder, try_new_folder, lambda path: write_atomically(path, "new")):
        target = (
            place if attempt is try_folder else place / ("new" if attempt is try_new_folder else "a.json")
        )
        with pytest.raises(LoadError) as error, as_nobody():
            attempt(target)
        assert str(error.value) == f"{target}: {MESSAGES[errno.EACCES]}"
    assert [p.name for p in place.iterdir()] == ["a.json"] and (place / "a.json").read_text() == "old"
