"""The C kernels: compiled once for a machine by the compiler that is there, kept on disk, loaded without Python's API.

Nothing is built at installation. Where there is no compiler, or it fails, `library()` is None and everything runs in
its plain form, which gives the same bits.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from onespike.kernels.cache import drop, keep, kept, private_folder

FOLDER = Path(__file__).parent
SOURCES = tuple(FOLDER / name for name in ("native.c", "product.c", "attention.c", "integer_attention.c"))
HEADERS = tuple(FOLDER / name for name in ("fire.h", "tile.h", "dot.h", "softmax.h"))
EXACT = ("-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
"""Vector code that rounds as the plain form does: no fast-math, no fused multiply-add."""
VECTORS = {"AVX2": ("-mavx2",), "AVX512": ("-mavx2", "-mavx512f")}
"""Flags by the capability that torch reports; a processor without one gets its compiler's default."""
SWITCH = "ONESPIKE_KERNELS"

log = logging.getLogger("onespike")


@cache
def library() -> ctypes.CDLL | None:
    """The kernels, or None where there are none; the reason is logged, and `note()` says it."""
    return _attempt()[0]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_there() -> bool:
    """Whether there is a library, as a constant where a compiler asks."""
    return library() is not None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_fast() -> bool:
    """Whether the products are written for this processor: one with AVX2, or with more."""
    return library() is not None and torch.backends.cpu.get_cpu_capability() in VECTORS


def note() -> str:
    """One line on which form the neurons run in on this machine's CPU, and why."""
    return _attempt()[1]


@cache
def _attempt() -> tuple[ctypes.CDLL | None, str]:
    try:
        loaded = _load()
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        reason = f"plain ({str(error).splitlines()[0]})"
        log.info("neurons run in their plain form: %s", error)
        return None, reason
    return loaded, "native"


def _load() -> ctypes.CDLL:
    if os.environ.get(SWITCH) == "plain":
        raise RuntimeError(f"{SWITCH}=plain")
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    capability = torch.backends.cpu.get_cpu_capability()
    source = b"".join(file.read_bytes() for file in (*SOURCES, *HEADERS))
    flags = (*EXACT, *VECTORS.get(capability, ()))
    machine = repr((flags, platform.system(), platform.machine()))
    key = hashlib.sha256(source + machine.encode()).hexdigest()[:16]
    folder = private_folder()
    for file in kept(folder, key) if folder else ():
        try:
            return _declared(ctypes.CDLL(str(file)))
        except (OSError, AttributeError) as error:  # for another machine, or without our functions
            log.info("%s is compiled again: %s", file, error)
            drop(file)
    if compiler is None:
        raise RuntimeError("no C compiler found")
    if folder and not os.access(folder, os.W_OK):
        folder = None
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built = Path(scratch) / "native.so"
        _compile(compiler, flags, built)
        # What is loaded stays, even if its file does not.
        return _declared(ctypes.CDLL(str(keep(built, folder, key) if folder else built)))


def _declared(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions; an AttributeError if it lacks one."""
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    loaded.onespike_fire.argtypes = (pointer, pointer, pointer, ctypes.c_int32, ctypes.c_int32)
    loaded.onespike_fire.restype = ctypes.c_int32
    loaded.onespike_count.argtypes = (
        pointer, number, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, pointer,
    )  # fmt: skip
    loaded.onespike_count.restype = None
    loaded.onespike_moments.argtypes = (pointer, number, pointer)
    loaded.onespike_moments.restype = None
    loaded.onespike_product.argtypes = (pointer, pointer, ctypes.c_int32)
    loaded.onespike_product.restype = ctypes.c_int32
    loaded.onespike_path.argtypes = (ctypes.c_int32, pointer)
    loaded.onespike_path.restype = ctypes.c_int32
    loaded.onespike_attend.argtypes = (pointer, number, ctypes.c_int32)
    loaded.onespike_attend.restype = ctypes.c_int32
    loaded.onespike_attend_integers.argtypes = (pointer, number, ctypes.c_int32)
    loaded.onespike_attend_integers.restype = ctypes.c_int32
    return loaded


def _compile(compiler: str, flags: tuple[str, ...], target: Path) -> None:
    """Compile to `target`; with threads if the compiler knows OpenMP."""
    for threads in (("-fopenmp",), ()):
        run = subprocess.run(  # noqa: S603 (the user's own compiler on our own source)
            [compiler, *flags, *threads, *map(str, SOURCES), "-o", str(target), "-lm"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if run.returncode == 0:
            return
    raise RuntimeError(f"{compiler} failed: {run.stderr.strip() or 'no message'}")
