"""The C kernels, loaded without Python's API: those of the wheel, or compiled once by an installed compiler.

An installation from source builds nothing. If there is no compiler either, or it fails, `library()` is None and
everything runs in its plain form, which gives the same bits. A loaded library is code that runs, so none is loaded
from a place where another user could have put it; file names contain their digest.
"""

import ctypes
import hashlib
import logging
import os
import shutil
import stat
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from onespike.kernels.compiler import PREBUILT, VECTORS, compile_, flags_for, key

SWITCH = "ONESPIKE_KERNELS"

log = logging.getLogger("onespike")


def library() -> ctypes.CDLL | None:
    """Return the kernels, or None if there are none; the reason is logged, and `note()` states it."""
    return _attempt()[0]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_there() -> bool:
    """Return whether there is a library, as a constant under a compiler."""
    return library() is not None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_fast() -> bool:
    """Return whether the products are written for this processor: one with AVX2 or more."""
    return library() is not None and torch.backends.cpu.get_cpu_capability() in VECTORS


def note() -> str:
    """Return one line on the form that neurons run in on this machine's CPU, and why."""
    return _attempt()[1]


@cache
def _attempt() -> tuple[ctypes.CDLL | None, str]:
    try:
        return _load(), "native"
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        log.info("neurons run in their plain form: %s", error)
        return None, f"plain ({str(error).splitlines()[0]})"


def _load() -> ctypes.CDLL:
    if os.environ.get(SWITCH) == "plain":
        raise RuntimeError(f"{SWITCH}=plain")
    flags = flags_for(torch.backends.cpu.get_cpu_capability())
    name, folder = key(flags), private_folder()
    cached = sorted(folder.glob(f"native-{name}-*.so")) if folder else []
    for file in (*PREBUILT.glob(f"{name}.so"), *cached):
        try:
            if file in cached:
                _require_safe(file, ours=True)
                if library_name(name, file.read_bytes()) != file.name:
                    raise OSError("its content does not have the digest of its name")
            return _declared(file)
        except (OSError, AttributeError) as error:  # damaged, for another machine, or without our functions
            log.info("%s does not load, and the kernels are compiled: %s", file, error)
            if file in cached:
                with suppress(OSError):
                    file.unlink()
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("no C compiler found")
    if folder and not os.access(folder, os.W_OK):
        folder = None
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        target = Path(scratch) / "native.so"
        compile_(compiler, flags, target)
        if folder:  # moved at once, so that no other process ever sees a part of it
            target.chmod(0o700)
            target = target.replace(folder / library_name(name, target.read_bytes()))
        return _declared(target)  # a loaded library stays, even if its file does not


_NUMBER, _INT, _POINTER = ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "onespike_fire": (_INT, (_POINTER, _POINTER, _POINTER, _INT, _INT)),
    "onespike_count": (None, (_POINTER, _NUMBER, _INT, _INT, _INT, _POINTER)),
    "onespike_moments": (None, (_POINTER, _NUMBER, _POINTER)),
    "onespike_product": (_INT, (_POINTER, _POINTER, _INT)),
    "onespike_path": (_INT, (_INT, _POINTER)),
    "onespike_attend": (_INT, (_POINTER, _NUMBER, _INT)),
    "onespike_attend_integers": (_INT, (_POINTER, _NUMBER, _INT)),
}
"""The functions of the C side → types of the result and of the arguments."""


def _declared(file: Path) -> ctypes.CDLL:
    """Load a library and declare its functions; raise AttributeError if it lacks one."""
    loaded = ctypes.CDLL(str(file))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


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
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and (ours or not status.st_mode & stat.S_ISVTX):
        raise PermissionError(f"{path}: others may write here. Use chmod go-w")


def library_name(key: str, content: bytes) -> str:
    """Return the file name of a library made for this key."""
    return f"native-{key}-{hashlib.sha256(content).hexdigest()[:32]}.so"
