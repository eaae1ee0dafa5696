"""The folder of compiled kernels: only its user can write there, and file names contain their digest.

A loaded library is code that runs. So none is loaded from a place where another user could have put it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

log = logging.getLogger("onespike")


def cache_folder() -> Path:
    """Return the folder of compiled kernels: `$XDG_CACHE_HOME/onespike`, by default `~/.cache/onespike`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onespike"


def private_folder() -> Path | None:
    """Return the cache, made if missing; None, with the reason in the log, if others could put files there."""
    try:
        folder = cache_folder().absolute()
        for place in (*reversed(folder.parents), folder):
            place.mkdir(mode=0o700, exist_ok=True)
        folder = folder.resolve()
        _require_safe(folder, ours=True)
        for place in folder.parents:
            _require_safe(place, ours=False)
    except (OSError, RuntimeError) as error:
        log.info("the kernels are compiled for this process alone: %s", error)
        return None
    return folder


def _require_safe(path: Path, *, ours: bool) -> None:
    """Raise an error if another user may have written this path or, for a parent folder (not `ours`), could rename in it."""
    if os.name != "posix":
        return
    status, user = os.lstat(path), os.geteuid()
    if status.st_uid not in ((user,) if ours else (user, 0)):
        raise PermissionError(f"{path}: it belongs to another user")
    # A link has all bits set, so it is not our library. In a sticky folder others cannot rename our files.
    if status.st_mode & OTHERS_WRITE and (ours or not status.st_mode & stat.S_ISVTX):
        raise PermissionError(f"{path}: others may write here. Use chmod go-w")


def name(key: str, content: bytes) -> str:
    """Return the file name of a library made for this key."""
    return f"native-{key}-{hashlib.sha256(content).hexdigest()[:32]}.so"


def libraries(folder: Path, key: str) -> Iterator[Path]:
    """Yield libraries for this key that are ours and whole."""
    for file in sorted(folder.glob(f"native-{key}-*.so")):
        try:
            _require_safe(file, ours=True)
            if name(key, file.read_bytes()) == file.name:
                yield file
                continue
            reason = "its content does not have the digest of its name"
        except OSError as error:
            reason = str(error)
        log.info("%s is not loaded: %s", file, reason)
        drop(file)


def keep(built: Path, folder: Path, key: str) -> Path:
    """Move a library into the cache at once, so that no other process ever sees a part of it."""
    built.chmod(0o700)
    return built.replace(folder / name(key, built.read_bytes()))


def drop(file: Path) -> None:
    """Remove a library that cannot be used."""
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        log.info("%s stays: %s", file, error)
