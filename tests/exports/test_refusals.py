"""What no format can write is refused before anything is written, word by word."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

import onespike
from exports.small import Deep, small
from onespike.deploy.exports import FORMATS
from onespike.errors import LoadError, UsageError
from onespike.recipe import Recipe


def refusal(*args: object, **kwargs: object) -> str:
    with pytest.raises((UsageError, LoadError)) as error:
        onespike.export(*args, **kwargs)  # type: ignore[arg-type]
    return str(error.value)


def test_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snn, batches = small(Deep)
    out = tmp_path / "a.onnx"
    assert refusal(snn, "onyx", out, batches).startswith(
        "unknown format 'onyx'. Did you mean 'onnx'? Known: "
    )
    assert refusal(Deep(), "onnx", out, batches) == "export: this network has no neurons. Convert it first."
    assert refusal(snn, "onnx", out, batches[0][:1]) == (
        "export: at least two inputs are needed, so that the size of a batch can be left open."
    )
    out.touch()
    assert refusal(snn, "onnx", out, batches) == f"{out} exists. Choose another name or remove it."
    out.unlink()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert refusal(snn, "onnx", out, batches) == (
        "export: onnx needs onnxruntime. Install it with: pip install 'onespike[onnx]'"
    )
    assert list(tmp_path.iterdir()) == []


def test_several_timesteps(tmp_path: Path) -> None:
    snn, batches = small(Deep, Recipe(steps=4))
    assert refusal(snn, "pt2", tmp_path / "a.pt2", batches) == (
        "export: a file is for one timestep. Convert with steps=1."
    )


def test_a_neuron_with_a_rule_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'onespike[onnx]'")
    snn, batches = small(Deep, Recipe(neuron="if", levels="1,", steps=1))
    assert refusal(snn, "onnx", tmp_path / "a.onnx", batches) == (
        "export: the neuron 'if' at 2:linear0_input fires by a rule of its own, which no format but pt2 can write. "
        "Convert with neuron='sfn', or export with format='pt2'."
    )
    assert list(tmp_path.iterdir()) == []


def test_bfloat16(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'onespike[onnx]'")
    x = torch.randn(4, 6).bfloat16()
    snn = onespike.spike(Deep().bfloat16().eval(), [x])
    assert refusal(snn, "onnx", tmp_path / "a.onnx", x) == (
        "export: onnxruntime does not multiply bfloat16. Use snn.float(), or export with format='pt2'."
    )
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
    known = FORMATS[name]
    for package in known.needs:
        pytest.importorskip(
            package, reason=f"{package} is not installed: pip install 'onespike[{known.extra}]'"
        )
    snn, batches = small(Deep, Recipe(io="spiking"))
    out = tmp_path / "new" / f"a{known.suffix}"
    with largest_file(2000):
        words = refusal(snn, name, out, batches)
    assert words == f"{out}: the disk is full. Free some space or choose another place."
    assert list(tmp_path.iterdir()) == []
