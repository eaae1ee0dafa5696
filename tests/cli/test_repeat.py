"""`evaluate --repeat N`: the score over several calibrations."""

from __future__ import annotations

import json
import statistics

import pytest
from command_line import CALIBRATION, TEST, VIT


def test_evaluate_repeats_the_calibration(cli, tmp_path):
    run, file = tmp_path / "run", tmp_path / "result.json"
    words = ("convert", VIT, "--preset", "sformer", "--calibrate", CALIBRATION, "--limit", 4, "--out", run)
    assert cli(*words).code == 0
    measure = ("evaluate", run, "--data", TEST, "--limit", 20, "--json", file)
    found = [
        cli(*measure, *more) for more in (("--repeat", 3), ("--repeat", 3), ("--repeat", 3, "--seed", 1))
    ]
    assert (
        "3 calibrations on 4 images each, drawn from bundled:cifar10-calibration (seed 1): top-1"
        in found[2].out
    )
    spread = [next(line for line in result.out.splitlines() if "3 calibrations" in line) for result in found]
    assert spread[0] == spread[1] != spread[2].replace("seed 1", "seed 0")
    again = json.loads(file.read_text())["calibrations"]
    assert len(set(again["scores"])) > 1
    assert (
        again["score"]["lowest"] == min(again["scores"]) < again["score"]["mean"] < again["score"]["highest"]
    )
    assert again["score"]["sd"] == pytest.approx(statistics.stdev(again["scores"]))
    assert again["ratio"]["sd"] > 0
    file.unlink()
    assert cli(*measure).code == 0 and "calibrations" not in json.loads(file.read_text())
