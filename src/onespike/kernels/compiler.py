"""The sources of the C kernels, and how a compiler builds them. Imports nothing, so that `setup.py` can use it."""

import hashlib
import platform
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = tuple(FOLDER / name for name in ("native.c", "product.c", "attention.c", "integer_attention.c"))
HEADERS = tuple(FOLDER / name for name in ("fire.h", "tile.h", "dot.h", "softmax.h"))
EXACT = ("-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
"""Vector code that rounds as the plain form does: no fast-math, no fused multiply-add."""
VECTORS = {"AVX2": ("-mavx2",), "AVX512": ("-mavx2", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")}
"""Flags by the capability that torch reports, and demands; a processor without one gets its compiler's default."""
PREBUILT = FOLDER / "prebuilt"
"""The folder of a wheel's compiled kernels; source distributions and editable installations have none."""


def flags_for(capability: str) -> tuple[str, ...]:
    return (*EXACT, *VECTORS.get(capability, ()))


def key(flags: tuple[str, ...]) -> str:
    """Return the name of what these sources and flags make on this kind of machine."""
    source = b"".join(file.read_bytes() for file in (*SOURCES, *HEADERS))
    machine = repr((flags, platform.system(), platform.machine()))
    return hashlib.sha256(source + machine.encode()).hexdigest()[:16]


def compile_(compiler: str, flags: tuple[str, ...], target: Path) -> None:
    """Compile to `target`; with threads if the compiler knows OpenMP."""
    for threads in (("-fopenmp",), ()):
        run = subprocess.run(  # noqa: S603 (the user's own compiler on our own source)
            [compiler, *flags, *threads, *map(str, SOURCES), "-o", str(target), "-lm"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if run.returncode == 0:
            return
    raise RuntimeError(f"{compiler} failed: {run.stderr.strip() or 'no message'}")


def compile_all(compiler: str, folder: Path) -> list[Path]:
    """Compile one library per kind of processor of this architecture, named by its key: the contents of a wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = ("", *VECTORS) if platform.machine().lower() in ("x86_64", "amd64") else ("",)
    made = []
    for flags in map(flags_for, kinds):
        made.append(folder / f"{key(flags)}.so")
        compile_(compiler, flags, made[-1])
    return made
