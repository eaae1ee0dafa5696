"""`onespike export`."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

import pytest
from command_line import Command

from onespike.deploy.exports import FORMATS


def test_a_run_becomes_a_program(cli: Command, small_run: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "vit.pt2"
    done = cli(f"export {small_run} --format pt2 --out {out} --data {images} --limit 2 --batch-size 2").good()
    assert "0 differ" in done.out and "answers        0 of 2 differ" in done.out
    stored = json.loads((tmp_path / "vit.pt2.verified.json").read_text())
    assert stored["comparison"]["inputs"] == 2 and stored["comparison"]["differ"] == 0
    assert stored["network"].startswith("transformers:") and stored["scale"] == 0.25
    assert "torch" in stored["versions"] and stored["preprocessing"].startswith("resize 32×32")


def test_refusals(cli: Command, small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "a.pt2"
    words = ("export", small_run, "--out", out, "--format")
    assert cli(*words, "pt3").message().startswith("unknown format 'pt3'. Did you mean 'pt2'? Known: ")
    assert cli(*words, "onnx").message() == (
        f"export: files of onnx end in .onnx, by which other programs know them. Choose --out {tmp_path / 'a.onnx'}."
    )
    for name, known in FORMATS.items():
        file = tmp_path / f"a{known.suffix}"
        ask = ("export", small_run, "--out", file, "--format", name)
        for package in set(known.needs) - {"pydantic", "safetensors"}:  # a run needs these two already
            with monkeypatch.context() as patched:
                patched.setitem(sys.modules, package, None)
                assert cli(*ask).message() == (
                    f"export: {name} needs {package}. Install it with: pip install 'onespike[{name}]'"
                )
        file.touch()
        assert cli(*ask).message() == f"{file} exists. Choose another name or remove it."
        file.unlink()
    assert cli(*words, "pt2", "--limit", 1).message() == (
        "export: at least two inputs are needed, so that the size of a batch can be left open."
    )
    assert (
        cli("export", tmp_path / "none", "--out", out, "--format", "pt2")
        .message()
        .startswith(f"{tmp_path / 'none'}: no run here")
    )
    assert list(tmp_path.iterdir()) == []

    import torch

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(torch.export, "save", full)
        assert cli(*words, "pt2", "--limit", 2).message() == (
            f"{out}: the disk is full. Free some space or choose another place."
        )
    assert list(tmp_path.iterdir()) == []


def test_formats_are_listed(cli: Command) -> None:
    listed = cli("list", "formats").out
    assert "pt2" in listed and "onnx" in listed and "float and integer form" in listed
