"""`onespike evaluate` beyond two networks: `--integer`, `--compare`, `--format`, `--repeat`."""

from __future__ import annotations

import json
import statistics

import pytest
import torch
from command_line import CONVERT, TEST
from torch import nn

EVALUATE = f"--data {TEST} --limit 4 --json"


def test_weights_as_integers(cli, vit_run, tmp_path):
    results = []
    for extra in ((), ("--integer",)):
        file = tmp_path / f"{len(results)}.json"
        result = cli(f"evaluate {vit_run} {EVALUATE} {file}", *extra).good()
        assert ("weighted products run on 8-bit integers" in result.out) == bool(extra)
        w8a8 = next(row.split()[1:4] for row in result.out.splitlines() if row.startswith("w8a8"))
        assert w8a8 == ["0.065", "–", "0.065"]
        results.append(json.loads(file.read_text()))
    plain, integer = results
    assert integer["ann"] == plain["ann"]
    assert integer["kl"] != plain["kl"]  # the weights are rounded
    assert abs(integer["energy"]["counts"] - plain["energy"]["counts"]) < 0.05


def test_integers_are_for_one_timestep(cli, tmp_path):
    cli(f"{CONVERT} --limit 2 --set steps=2 --out {tmp_path / 'run'}").good()
    result = cli(f"evaluate {tmp_path / 'run'} {EVALUATE} {tmp_path / 'out.json'} --integer")
    message = "optimize: integer inference is for one timestep. Convert with --set steps=1."
    assert result.message() == message and not (tmp_path / "out.json").exists()


def test_networks_are_compared_at_the_prices_of_a_profile(cli, tmp_path, vit_run):
    file = tmp_path / "result.json"
    words = f"evaluate {vit_run} {EVALUATE} {file} --compare --profile horowitz-45nm-sram"
    done = cli(words).good()
    record = json.loads(file.read_text())
    rows = {row["network"]: row for row in record["compared"]}
    assert rows["spiking"]["snn"] == record["snn"]
    assert rows["spiking"]["ratio"] == record["energy"]["counts"]
    assert rows["spiking, 8-bit weights"]["ratio"] == record["energy"]["counts-int8"]
    assert rows["W8A8, per tensor"]["ratio"] == pytest.approx(2.8 / 14.6)
    assert record["profile"] == "horowitz-45nm-sram"
    strict = record["energy"]["strict-w8a8"]
    assert rows["W8A8, per channel"]["strict"] == pytest.approx(strict)
    assert (
        rows["W8A8, per channel, 70 % skipped"]["strict"]
        < rows["W8A8, per channel, 30 % skipped"]["strict"]
        < strict
    )
    assert "energy by horowitz-45nm-sram" in done.out and "W4A4, per channel" in done.out


def test_forms_in_one_table(cli, small_run, images, tmp_path, monkeypatch):
    file = tmp_path / "rows.json"

    class Uncompiled(nn.Module):
        def forward(self, *_: object) -> None:
            raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", lambda network: Uncompiled())
    words = f"evaluate {small_run} --data {images} --limit 4 --batch-size 2 --json {file}"
    done = cli(words, "--format", "original,eager,integer,compiled,pt2").good()
    assert "compiled: torch.compile fails on this network (no C++ compiler)." in done.out
    rows = {row["form"]: row for row in json.loads(file.read_text())["rows"]}
    assert list(rows) == ["original", "eager", "integer", "compiled", "pt2"]
    assert rows.pop("compiled")["refused"]
    assert all(row["milliseconds"] > 0 and row["bytes"] > 0 and not row["refused"] for row in rows.values())
    assert rows["pt2"]["score"] == rows["eager"]["score"]  # the same bits


def test_the_calibration_is_repeated(cli, tmp_path):
    run, file = tmp_path / "run", tmp_path / "result.json"
    cli(f"{CONVERT} --limit 4 --out {run}").good()
    words = f"evaluate {run} --data {TEST} --limit 12 --json {file}"
    results = [cli(f"{words} --repeat 3 {more}").good() for more in ("", "", "--seed 1")]
    spread = [
        next(line for line in result.out.splitlines() if "3 calibrations" in line) for result in results
    ]
    start = "3 calibrations on 4 images each, drawn from bundled:cifar10-calibration (seed 1): top-1"
    assert spread[2].startswith(start)
    assert spread[0] == spread[1] != spread[2].replace("seed 1", "seed 0")
    again = json.loads(file.read_text())["calibrations"]
    score = again["score"]
    assert score["lowest"] == min(again["scores"]) < score["mean"] < score["highest"]
    assert score["sd"] == pytest.approx(statistics.stdev(again["scores"]))
    assert again["ratio"]["sd"] > 0
