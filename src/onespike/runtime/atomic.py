"""Writing so that a result is there whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from onespike.errors import LoadError, UsageError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_FOLDER = (errno.ENOTDIR, errno.EEXIST)
LINKS = 40
"""As many links as the kernel follows."""


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """A new folder to write into, which takes the name `path` only when the block ends well.

    After any exception, Ctrl-C included, nothing is left: neither the folder nor the parents made for it.
    """
    path = Path(path)
    refuse_existing(path)
    with _explained(path), _parents(path), _partial(path, folder=True) as partial:
        yield partial
        refuse_existing(path)
        partial.rename(path)


@contextmanager
def atomic_files(path: Path) -> Iterator[Path]:
    """A new folder, whose files take their places beside `path` only when the block ends well.

    The one that is named as `path` goes last, so that whoever sees it sees all of them.
    """
    path = Path(path)
    refuse_existing(path)
    with _explained(path), _parents(path), _partial(path, folder=True) as partial:
        yield partial
        refuse_existing(path)
        for file in sorted(partial.iterdir(), key=lambda file: file.name == path.name):
            file.rename(path.with_name(file.name))


def write_atomically(path: Path, contents: bytes | str) -> None:
    """Write one file, replacing an older one only when the new one is whole. Text is UTF-8.

    What a link points to is replaced, never the link; devices and pipes are written through.
    """
    path, data = Path(path), contents.encode() if isinstance(contents, str) else contents
    with _explained(path):
        if (stream := _stream(path)) is not None:
            _write_through(stream, data)
            return
        target = _target(path)
        with _parents(target), _partial(target) as partial:
            partial.write_bytes(data)
            partial.replace(target)


def try_file(path: Path | None) -> None:
    """Find out before long work whether a file can be written there; nothing is changed."""
    if path is None:
        return
    path = Path(path)
    with _explained(path):
        if (stream := _stream(path)) is not None:
            if isinstance(stream, Path) and not os.access(stream, os.W_OK):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return
        _try(_target(path))


def try_folder(path: Path) -> None:
    """Find out before long work whether a folder can be made at `path`, or files be written into the one there."""
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise LoadError(f"{path}: this is a file. Give the name of a folder.")
    with _explained(path):
        _try(Path(os.path.realpath(path)) / "any")


def try_new_folder(path: Path) -> None:
    """Find out before long work whether `atomic_directory` will work."""
    path = Path(path)
    refuse_existing(path)
    with _explained(path):
        _try(path)


def _try(path: Path) -> None:
    """Make the parents of a file and something beside it, and take all of it away again."""
    with _parents(path, keep=False), _partial(path):
        pass


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise UsageError(f"{path} exists. Choose another --out or remove it.")


def _target(path: Path) -> Path:
    """The regular file that a path stands for, behind its links; it need not exist."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if target.exists() and not os.access(target, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return target


def _stream(path: Path) -> int | Path | None:
    """What is written through and cannot be replaced: an open file of this process, such as /dev/stdout, or a device.

    An open file is given by its number, since opening it again would start at its beginning.
    """
    step = path
    for _ in range(LINKS):
        folder = os.path.realpath(step.parent)
        if folder == f"/proc/{os.getpid()}/fd" and step.name.isdecimal():
            return int(step.name)
        if not step.is_symlink():
            break
        step = Path(folder) / step.readlink()
    if not path.exists() or path.is_file() or path.is_dir():
        return None
    if path.is_char_device() or path.is_fifo():
        return path
    raise LoadError(f"{path}: this is neither a file nor a pipe. Choose another place.")


def _write_through(stream: int | Path, data: bytes) -> None:
    for printed in filter(None, (sys.stdout, sys.stderr)):
        printed.flush()  # what was said before comes before
    with open(stream, "wb", buffering=0, closefd=isinstance(stream, Path)) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]


@contextmanager
def _partial(path: Path, folder: bool = False) -> Iterator[Path]:
    """A new file or folder beside `path`, so that the last step is a rename within one file system.

    It is locked while this process lives, and so is known as abandoned as soon as the process has died.
    """
    _clear_abandoned(path.parent)
    while True:
        partial = path.with_name(f".onespike-{secrets.token_hex(4)}.partial")
        partial.mkdir() if folder else partial.touch(exist_ok=False)
        lock = _lock(partial, wait=True)
        if (
            lock is None or partial.exists()
        ):  # between making and locking it another process may have cleared it
            break
        os.close(lock)
    try:
        yield partial
    finally:  # it is gone if all went well
        _remove(partial)
        if lock is not None:
            os.close(lock)


def _clear_abandoned(folder: Path) -> None:
    """Remove what processes that were killed have left in a folder; what a living one holds is locked."""
    for partial in folder.glob(".onespike-????????.partial"):
        lock = _lock(partial, wait=False)
        if lock is not None:
            _remove(partial)
            os.close(lock)


def _lock(partial: Path, wait: bool) -> int | None:
    """An open, locked file or folder; None where another process has it, or where there are no locks."""
    try:
        import fcntl

        descriptor = os.open(partial, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove(partial: Path) -> None:
    if partial.is_dir():
        shutil.rmtree(partial, ignore_errors=True)
    else:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def _parents(path: Path, keep: bool = True) -> Iterator[None]:
    """Make the missing parents of `path`; take them away again if the block fails, or if they are not to be kept."""
    missing = [p for p in path.parents if not p.exists()]
    done = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
        done = keep
    finally:
        if not done:
            with suppress(OSError):
                for parent in missing:
                    parent.rmdir()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what an operating system says about a place that cannot be written into what to do about it."""
    try:
        yield
    except Exception as error:
        code = _error_number(error)
        if code in FULL:
            raise LoadError(f"{path}: the disk is full. Free some space or choose another place.") from error
        if code in FORBIDDEN:
            raise LoadError(
                f"{path}: writing there is not permitted. Change the permissions or choose another place."
            ) from error
        if code == errno.ENAMETOOLONG:
            raise LoadError(f"{path}: this name is too long. Choose a shorter one.") from error
        if code == errno.EISDIR:
            raise LoadError(f"{path}: this is a folder. Give the name of a file.") from error
        if code in NO_FOLDER and not path.parent.is_dir():
            raise LoadError(f"{path}: a part of this path is a file. Choose another place.") from error
        raise


def _error_number(error: Exception) -> int | None:
    """The system's error number; safetensors gives it in its message only (`(os error 28)`)."""
    if isinstance(error, OSError):
        return error.errno
    text = str(error)
    return next((code for code in (*FULL, *FORBIDDEN) if f"(os error {code})" in text), None)
