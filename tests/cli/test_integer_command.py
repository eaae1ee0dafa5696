"""`onespike evaluate --integer`."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import TEST, Command


def test_a_run_is_measured_with_integer_weights(cli: Command, vit_run: Path, tmp_path: Path) -> None:
    results = []
    for extra in ((), ("--integer",)):
        out = tmp_path / f"{len(results)}.json"
        result = cli("evaluate", vit_run, "--data", TEST, "--limit", 4, "--json", out, *extra)
        assert result.code == 0, result.err
        assert ("weighted products run on 8-bit integers" in result.out) == bool(extra)
        w8a8 = next(row.split()[1:4] for row in result.out.splitlines() if row.startswith("w8a8"))
        assert w8a8 == ["0.065", "–", "0.065"]
        results.append(json.loads(out.read_text()))
    plain, integer = results
    assert integer["ann"] == plain["ann"]
    assert integer["kl"] != plain["kl"]  # the weights are rounded
    assert abs(integer["energy"]["counts"] - plain["energy"]["counts"]) < 0.05


def test_other_devices_are_refused(cli: Command, vit_run: Path) -> None:
    message = cli("evaluate", vit_run, "--data", TEST, "--integer", "--device", "meta").message()
    assert "device 'meta' cannot be used here" in message


def test_several_timesteps_are_refused_in_one_sentence(cli: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ("--calibrate", "bundled:cifar10-calibration", "--limit", 2, "--set", "steps=2")
    made = cli("convert", "bundled:cifar10-vit", *options, "--preset", "sformer", "--out", run)
    assert made.code == 0, made.err
    result = cli("evaluate", run, "--data", TEST, "--limit", 2, "--integer", "--json", tmp_path / "out.json")
    assert result.code == 2
    assert result.err.endswith("integer inference is for one timestep. Convert with --set steps=1.\n")
    assert not (tmp_path / "out.json").exists()
