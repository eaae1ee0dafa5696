"""Unfinished files and folders: locked while their process lives, removed when it is gone."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def unfinished(path: Path, folder: bool = False) -> Iterator[Path]:
    """Yield a new file or folder beside `path`, so that the last step is a rename within one file system.

    It is locked while this process lives, so that other processes can tell when it is abandoned.
    """
    _clear_abandoned(path.parent)
    while True:
        partial = path.with_name(f".onespike-{secrets.token_hex(4)}.partial")
        partial.mkdir() if folder else partial.touch(exist_ok=False)
        lock = _lock(partial, wait=True)
        if lock is None or partial.exists():  # another process may have cleared it before it was locked
            break
        os.close(lock)
    try:
        yield partial
    finally:  # it is gone if all went well
        _remove(partial)
        if lock is not None:
            os.close(lock)


def _clear_abandoned(folder: Path) -> None:
    """Remove what killed processes left in a folder; files of living processes are locked."""
    for partial in folder.glob(".onespike-????????.partial"):
        lock = _lock(partial, wait=False)
        if lock is not None:
            _remove(partial)
            os.close(lock)


def _lock(partial: Path, wait: bool) -> int | None:
    """Return an open, locked file or folder; None if another process has it or there are no locks."""
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
def parents(path: Path, keep: bool = True) -> Iterator[None]:
    """Make the missing parents of `path`; remove them if the block fails or if `keep` is false."""
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
