"""Writing so that a result is there whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onespike.errors import LoadError, UsageError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_FOLDER = (errno.ENOTDIR, errno.EEXIST)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """A new folder to write into, which takes the name `path` only when the block ends well.

    After any exception, Ctrl-C included, nothing is left: neither the folder nor the parents made for it.
    """
    path = Path(path)
    _refuse_existing(path)
    with _explained(path), _parents(path):
        partial = _sibling(path)
        partial.mkdir()
        try:
            yield partial
            _refuse_existing(path)
            partial.rename(path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def write_atomically(path: Path, contents: bytes | str) -> None:
    """Write one file, replacing an older one only when the new one is whole. Text is UTF-8."""
    path = Path(path)
    with _explained(path), _parents(path):
        partial = _sibling(path)
        try:
            partial.write_bytes(contents.encode() if isinstance(contents, str) else contents)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise UsageError(f"{path} exists. Choose another --out or remove it.")


def _sibling(path: Path) -> Path:
    """A free name beside `path`, so that the last step is a rename within one file system."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


@contextmanager
def _parents(path: Path) -> Iterator[None]:
    """Make the missing parents of `path`; take them away again if the block fails."""
    missing = [p for p in path.parents if not p.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for parent in missing:
            try:
                parent.rmdir()
            except OSError:
                break
        raise


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
