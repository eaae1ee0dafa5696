"""The C kernels, loaded without Python's API: those of the wheel, or compiled once by an installed compiler.

An installation from source builds nothing. If there is no compiler either, or it fails, `library()` is None and
everything runs in its plain form, which gives the same bits.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from onespike.kernels.cache import drop, keep, libraries, private_folder
from onespike.kernels.compiler import PREBUILT, VECTORS, compile_, flags_for, key

SWITCH = "ONESPIKE_KERNELS"

log = logging.getLogger("onespike")


@cache
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
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    flags = flags_for(torch.backends.cpu.get_cpu_capability())
    name = key(flags)
    built = _prebuilt(name)
    if built is not None:
        return built
    folder = private_folder()
    for file in libraries(folder, name) if folder else ():
        try:
            return _declared(file)
        except (OSError, AttributeError) as error:  # for another machine, or without our functions
            log.info("%s is compiled again: %s", file, error)
            drop(file)
    if compiler is None:
        raise RuntimeError("no C compiler found")
    if folder and not os.access(folder, os.W_OK):
        folder = None
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        target = Path(scratch) / "native.so"
        compile_(compiler, flags, target)
        # A loaded library stays, even if its file does not.
        return _declared(keep(target, folder, name) if folder else target)


def _prebuilt(name: str) -> ctypes.CDLL | None:
    """Return the wheel's library for these sources and this kind of processor; None without one that loads."""
    file = PREBUILT / f"{name}.so"
    if not file.is_file():
        return None
    try:
        return _declared(file)
    except (OSError, AttributeError) as error:
        log.info("%s does not load, and the kernels are compiled: %s", file, error)
        return None


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
