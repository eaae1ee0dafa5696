"""`onespike evaluate` beyond two networks: `--integer`, `--compare`, `--format`; and `onespike export`."""

from __future__ import annotations

import re

import pytest
import torch
from command_line import TEST, stored
from torch import nn

EVALUATE = f"--data {TEST} --limit 4"


def test_weights_as_integers(figures, vit_run):
    records = []
    for extra in ("", "--integer"):
        result, record = figures(f"evaluate {vit_run} {EVALUATE} {extra}")
        assert ("weighted products run on 8-bit integers" in result.out) == bool(extra)
        assert re.search(r"^w8a8 +0\.065 +– +0\.065 ", result.out, re.MULTILINE)
        records.append(record)
    plain, integer = records
    assert integer["ann"] == plain["ann"]
    assert integer["kl"] != plain["kl"]  # the weights are rounded
    assert abs(integer["energy"]["counts"] - plain["energy"]["counts"]) < 0.05


def test_networks_are_compared_at_the_prices_of_a_profile(figures, vit_run):
    done, record = figures(f"evaluate {vit_run} {EVALUATE} --compare --profile horowitz-45nm-sram")
    rows = {row["network"]: row for row in record["compared"]}
    assert rows["spiking"]["snn"] == record["snn"]
    assert rows["spiking"]["ratio"] == record["energy"]["counts"]
    assert rows["spiking, 8-bit weights"]["ratio"] == record["energy"]["counts-int8"]
    assert rows["W8A8, per tensor"]["ratio"] == pytest.approx(2.8 / 14.6)
    assert record["profile"] == "horowitz-45nm-sram"
    strict = record["energy"]["strict-w8a8"]
    assert rows["W8A8, per channel"]["strict"] == pytest.approx(strict)
    most, least = (rows[f"W8A8, per channel, {share} % skipped"]["strict"] for share in (70, 30))
    assert most < least < strict
    assert "energy by horowitz-45nm-sram" in done.out and "W4A4, per channel" in done.out


def test_forms_in_one_table(figures, small_run, images, monkeypatch):
    class Uncompiled(nn.Module):
        def forward(self, *_: object) -> None:
            raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", lambda network: Uncompiled())
    words = f"evaluate {small_run} --data {images} --limit 4 --batch-size 2 --format"
    done, record = figures(f"{words} original,eager,integer,compiled,pt2")
    assert "compiled: torch.compile fails on this network (no C++ compiler)." in done.out
    rows = {row["form"]: row for row in record["rows"]}
    assert list(rows) == ["original", "eager", "integer", "compiled", "pt2"]
    assert rows.pop("compiled")["refused"]
    assert all(row["milliseconds"] > 0 and row["bytes"] > 0 and not row["refused"] for row in rows.values())
    assert rows["pt2"]["score"] == rows["eager"]["score"]  # the same bits


def test_a_run_becomes_a_program(cli, small_run, images, tmp_path):
    words = (
        f"export {small_run} --format pt2 --data {images} --limit 2 --batch-size 2 --out {tmp_path}/vit.pt2"
    )
    done = cli(words).good()
    assert "0 differ" in done.out and "answers        0 of 2 differ" in done.out
    record = stored(tmp_path / "vit.pt2.verified.json")
    assert record["comparison"]["inputs"] == 2 and record["comparison"]["differ"] == 0
    assert record["network"].startswith("transformers:") and record["scale"] == 0.25
    assert "torch" in record["versions"] and record["preprocessing"].startswith("resize 32×32")
