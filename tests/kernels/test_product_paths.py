"""Paths that this processor lacks give the same bits: compiled through SIMDe, which emulates their instructions."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from onespike.kernels import build, compiler, product
from onespike.sites.visitor import Sites, Visit

SIMDE = Path("/usr/include/simde")


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None or not SIMDE.is_dir():
        pytest.skip("no C compiler, or no SIMDe (Debian: libsimde-dev)")
    target = tmp_path_factory.mktemp("simde") / "product.so"
    source = compiler.FOLDER / "product.c"
    flags = [flag for flag in compiler.EXACT if flag != "-O3"]
    subprocess.run(
        [found, *flags, "-O1", "-DONESPIKE_SIMDE", str(source), "-o", str(target), "-lm"], check=True
    )
    library = ctypes.CDLL(str(target))
    library.onespike_product.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
    library.onespike_path.argtypes = (ctypes.c_int32, ctypes.c_void_p)
    return library


@pytest.mark.parametrize("number", range(len(product.PATHS)), ids=product.PATHS)
def test_a_path_is_exact_when_emulated(
    number: int, emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = (ctypes.c_int32 * 3)()
    assert emulated.onespike_path(number, layout) == 1
    monkeypatch.setattr(build, "library", lambda: emulated)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert product._is_exact(product.Path(number, layout[1], layout[2]))


def test_the_self_test_may_run_within_a_network() -> None:
    seen: list[str] = []
    product.paths.cache_clear()
    with Sites(Visit(lambda operand, x: seen.append(str(operand.site)) or x)):
        product.paths()
    assert not seen


def test_a_path_that_is_not_exact_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    if build.library() is None:
        pytest.skip("no kernels here")
    product.paths.cache_clear()
    monkeypatch.setattr(product, "_is_exact", lambda path: path.name != product.PATHS[-1])
    assert product.PATHS[-1] not in [path.name for path in product.paths()]
    assert "plain C does not multiply exactly here" in caplog.text
    product.paths.cache_clear()


def test_a_slower_processor_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    product.paths.cache_clear()
    monkeypatch.setenv(build.SWITCH, product.PATHS[-1])
    names = [path.name for path in product.paths()]
    product.paths.cache_clear()
    assert names == ([] if build.library() is None else [product.PATHS[-1]])
