"""Folders and files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from contract import networks
from onespike.errors import LoadError, UsageError
from onespike.runtime.atomic import atomic_directory, try_file, try_folder, try_new_folder, write_atomically

FULL = "the disk is full. Free some space or choose another place."
FORBIDDEN = "writing there is not permitted. Change permissions or choose another place."
IN_THE_WAY = "a part of this path is a file. Choose another place."
posix = pytest.mark.skipif(sys.platform == "win32", reason="devices, locks and links of POSIX")


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def refused(place: Path, message: str):
    return networks.refused(LoadError, f"{place}: {message}")


def test_a_folder_appears_when_the_block_ends(tmp_path):
    target = tmp_path / "new" / "deeper" / "run"
    with atomic_directory(target) as folder:
        (folder / "a.json").write_text("{}")
        assert not target.exists()
    assert names(target) == ["a.json"] and names(target.parent) == ["run"]
    probe = tmp_path / "probe"
    probe.mkdir()
    assert target.stat().st_mode == probe.stat().st_mode


@pytest.mark.parametrize(
    "make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")], ids=["folder", "file", "link"]
)
@pytest.mark.parametrize("meanwhile", [False, True])
def test_what_exists_is_not_touched(tmp_path, make, meanwhile):
    target = tmp_path / "run"
    if not meanwhile:
        make(target)
    with pytest.raises(UsageError) as error, atomic_directory(target):
        make(target)  # again, where it was there before, would fail otherwise
    assert str(error.value) == f"{target} exists. Choose another name or remove it."
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize(("failure", "message"), [
    (KeyboardInterrupt(), None),
    (ValueError(), None),
    (OSError(errno.EIO, "not mine"), None),
    (OSError(errno.ENOSPC, ""), FULL),
    (OSError(errno.EFBIG, ""), FULL),
    (ValueError("File too large (os error 27)"), FULL),  # as safetensors says it
    (OSError(errno.EACCES, ""), FORBIDDEN),
    (OSError(errno.EROFS, ""), FORBIDDEN),
], ids=repr)  # fmt: skip
def test_nothing_is_left_after_a_failure(tmp_path, failure, message):
    target = tmp_path / "new" / "run"
    expected = refused(target, message) if message else pytest.raises(type(failure))
    with expected, atomic_directory(target) as folder:
        (folder / "a.json").write_text("{}")
        raise failure
    assert names(tmp_path) == []


def test_one_file(tmp_path):
    target = tmp_path / "new" / "a.json"
    for contents, stored in (("λ", "λ".encode()), ("θ", "θ".encode()), (b"\x00", b"\x00")):
        write_atomically(target, contents)
        assert target.read_bytes() == stored
    assert names(target.parent) == ["a.json"]
    with refused(tmp_path, "this is a folder. Give the name of a file."):
        write_atomically(tmp_path, "λ")
    assert not list(tmp_path.parent.glob(".*.partial"))


def test_an_old_file_survives_a_failed_write(tmp_path, monkeypatch):
    target = tmp_path / "a.json"
    write_atomically(target, "old")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_atomically(target, "new")
    assert target.read_text() == "old" and names(tmp_path) == ["a.json"]


@posix
def test_links_are_written_through(tmp_path):
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link.json", tmp_path / "there" / "a.json"
    link.symlink_to("there/a.json")
    for text in ("made", "replaced"):
        try_file(link)
        write_atomically(link, text)
        assert link.is_symlink() and target.read_text() == text
    assert names(target.parent) == ["a.json"]


@posix
def test_devices_and_pipes_are_written_through(tmp_path):
    try_file(Path("/dev/null"))
    write_atomically(Path("/dev/null"), "gone")
    with refused(Path("/dev/full"), FULL):
        write_atomically(Path("/dev/full"), "refused")
    assert Path("/dev/null").is_char_device() and Path("/dev/full").is_char_device()
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    try_file(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    write_atomically(pipe, "λ" * 100_000)
    reader.join()
    assert received == [("λ" * 100_000).encode()] and pipe.is_fifo()


@posix
def test_a_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # their paths must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        for attempt in (try_file, lambda path: write_atomically(path, "")):
            with refused(Path("s"), "this is neither a file nor a pipe. Choose another place."):
                attempt(Path("s"))


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
@pytest.mark.parametrize("name", ["/dev/stdout", "link"])
def test_standard_output_keeps_what_was_printed(tmp_path, name):
    (tmp_path / "link").symlink_to("/dev/stdout")
    with (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", SPEAKING, name], stdout=out, check=True, cwd=tmp_path)
    assert (tmp_path / "out").read_text() == "before\nwritten\nafter\n"


HELD = """
import sys, time
from pathlib import Path
from onespike.runtime.atomic import atomic_directory

with atomic_directory(Path(sys.argv[1]) / "run") as folder:
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
            held = list(tmp_path.glob(".*.partial"))
            assert len(held) == 1
            write_atomically(tmp_path / "a.json", "{}")
            try_new_folder(tmp_path / "run")
            assert list(tmp_path.glob(".*.partial")) == held
        finally:
            process.send_signal(signal.SIGKILL)
    write_atomically(tmp_path / "a.json", "{}")
    assert names(tmp_path) == ["a.json"]


def test_trying_leaves_nothing(tmp_path):
    for attempt in (try_file, try_folder, try_new_folder):
        attempt(tmp_path / "new" / "deeper" / "a")
        assert names(tmp_path) == []
    old = tmp_path / "old.json"
    old.write_text("old")
    try_file(old)
    try_folder(tmp_path)
    assert old.read_text() == "old" and names(tmp_path) == ["old.json"]


@pytest.mark.parametrize(("attempt", "place", "message"), [
    (try_file, ".", "this is a folder. Give the name of a file."),
    (try_folder, "file", "this is a file. Give the name of a folder."),
    (try_file, "file/a", IN_THE_WAY),
    (try_new_folder, "file/a", IN_THE_WAY),
    (lambda place: atomic_directory(place).__enter__(), "file/deeper/a", IN_THE_WAY),
    (try_file, "a" * 300, "this name is too long. Choose a shorter one."),
])  # fmt: skip
def test_trying_finds_what_writing_would_find(tmp_path, attempt, place, message):
    (tmp_path / "file").touch()
    with refused(tmp_path / place, message):
        attempt(tmp_path / place)


@contextmanager
def as_nobody():
    """Permissions do not bind root."""
    root = os.geteuid() == 0
    os.seteuid(65534 if root else os.geteuid())
    try:
        yield
    finally:
        os.seteuid(0 if root else os.geteuid())


@posix
def test_a_folder_that_may_not_be_written(tmp_path):
    place = tmp_path / "closed"
    place.mkdir()
    (place / "a.json").write_text("old")
    for folder in (*list(tmp_path.parents)[:-1], tmp_path):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)  # nobody must get here to be refused
    place.chmod(0o555)
    attempts = ((try_file, "a.json"), (try_folder, "."), (try_new_folder, "new"))
    for attempt, name in (*attempts, (lambda path: write_atomically(path, "new"), "a.json")):
        with refused(place / name, FORBIDDEN), as_nobody():
            attempt(place / name)
    assert names(place) == ["a.json"] and (place / "a.json").read_text() == "old"
