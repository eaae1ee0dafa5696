"""`onespike evaluate --format`: the forms of a run in one table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command_line import TEST, Command
from torch import nn


def test_forms_in_one_table(cli: Command, small_run: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    words = f"evaluate {small_run} --data {images} --limit 4 --batch-size 2"
    done = cli(words, "--format", "original,eager,integer,pt2", "--json", out)
    assert done.code == 0, done.err
    rows = {row["form"]: row for row in json.loads(out.read_text())["rows"]}
    assert list(rows) == ["original", "eager", "integer", "pt2"]
    assert all(row["milliseconds"] > 0 and row["bytes"] > 1e4 and not row["refused"] for row in rows.values())
    assert rows["pt2"]["score"] == rows["eager"]["score"]  # the same bits
    assert rows["integer"]["bytes"] > 0 and "form" in done.out


def test_refusals(cli: Command, vit_run: Path) -> None:
    words = ("evaluate", vit_run, "--data", TEST, "--limit")
    assert (
        cli(*words, 4, "--format", "onyx").message().startswith("unknown form 'onyx'. Did you mean 'onnx'?")
    )
    assert cli(*words, 1, "--format", "all").message() == (
        "benchmark: at least two inputs are needed. Give a larger --limit or --batch-size."
    )


def test_a_form_that_fails_is_listed_with_the_reason(
    cli: Command, vit_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(network: nn.Module) -> Callable[..., object]:
        def run(*_: object) -> object:
            raise RuntimeError("no C++ compiler")

        return run

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr("onespike.runs.forms._bytes", lambda network: 1)
    words = ("evaluate", vit_run, "--data", TEST, "--limit", 2, "--format", "eager,compiled")
    done = cli(*words)
    assert done.code == 0, done.err
    assert "compiled: torch.compile fails on this network (no C++ compiler)." in done.out
