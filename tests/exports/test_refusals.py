"""What no format can write is refused before anything is written, word by word."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import onespike
from exports.small import Deep, installed, small
from onespike.errors import LoadError, UsageError
from onespike.recipe import Recipe

BFLOATS = torch.randn(4, 6).bfloat16()


def refusal(*args: object, **kwargs: object) -> str:
    with pytest.raises((UsageError, LoadError)) as error:
        onespike.export(*args, **kwargs)  # type: ignore[arg-type]
    return str(error.value)


def test_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snn, batches = small(Deep)
    out = tmp_path / "a.onnx"
    assert refusal(snn, "onyx", out, batches).startswith(
        "unknown format 'onyx'. Did you mean 'onnx' or 'qonnx'? Known: "
    )
    assert refusal(Deep(), "onnx", out, batches) == "export: this network has no neurons. Convert it first."
    assert refusal(snn, "onnx", out, batches[0][:1]) == (
        "export: at least two inputs are needed, so that the size of a batch can be left open."
    )
    assert refusal(snn, "integers", tmp_path / "a", batches, integer=False) == (
        "export: integers cannot hold the float form. It is always on integers."
    )
    out.touch()
    assert refusal(snn, "onnx", out, batches) == f"{out} exists. Choose another name or remove it."
    out.unlink()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert refusal(snn, "onnx", out, batches) == (
        "export: onnx needs onnxruntime. Install it with: pip install 'onespike[onnx]'"
    )
    assert list(tmp_path.iterdir()) == []


NO_FILE: dict[str, tuple[Callable[[], Any], str, str]] = {
    "timesteps": (
        lambda: small(Deep, Recipe(steps=4)), "pt2", "export: a file is for one timestep. Convert with steps=1.",
    ),
    "a rule of its own": (
        lambda: small(Deep, Recipe(neuron="if", levels="1,", steps=1)), "onnx",
        "export: the neuron 'if' at 2:linear0_input fires by a rule of its own, which no format but pt2 can "
        "write. Convert with neuron='sfn', or export with format='pt2'.",
    ),
    "bfloat16": (
        lambda: (onespike.spike(Deep().bfloat16().eval(), [BFLOATS]), BFLOATS), "onnx",
        "export: onnxruntime does not multiply bfloat16. Use snn.float(), or export with format='pt2'.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "name", "words"), NO_FILE.values(), ids=NO_FILE)
def test_what_no_file_can_hold(make: Callable[[], Any], name: str, words: str, tmp_path: Path) -> None:
    snn, inputs = make()
    assert refusal(snn, name, tmp_path / f"a{installed(name).suffix}", inputs) == words
    assert list(tmp_path.iterdir()) == []


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.second(self.first(x).relu())
        return self.last(hidden.relu() if hidden.sum() > 0 else hidden.abs())


def test_a_network_that_depends_on_values(tmp_path: Path) -> None:
    x = torch.randn(4, 6)
    snn = onespike.spike(Choosing(), [x])
    message = refusal(snn, "pt2", tmp_path / "a.pt2", x)
    assert message.startswith("export: torch.export cannot follow this network (")
    assert message.endswith("Its forward must not depend on values.")
    assert list(tmp_path.iterdir()) == []


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the size of files, as a full disk does: writers meet an error after that many bytes."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(sys.platform == "win32", reason="the size of files cannot be limited there")
@pytest.mark.parametrize("name", ["integers", "nir", "onnx", "pt2"])
def test_a_full_disk(name: str, tmp_path: Path) -> None:
    out = tmp_path / "new" / f"a{installed(name).suffix}"
    snn, batches = small(Deep, Recipe(io="spiking"))
    with largest_file(2000):
        words = refusal(snn, name, out, batches)
    assert words == f"{out}: the disk is full. Free some space or choose another place."
    assert list(tmp_path.iterdir()) == []
