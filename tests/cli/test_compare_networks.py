"""`evaluate --compare` and `--profile`: the spiking network beside integer ones, at named prices."""

from __future__ import annotations

import json

import pytest
from command_line import CALIBRATION, TEST, VIT

from onespike import runs
from onespike.adapters import load_model
from onespike.recipe import Recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    pair = runs.convert_network(load_model(VIT), runs.choose(CALIBRATION, 16), Recipe())
    runs.save(folder, pair)
    return folder


def test_networks_are_compared_at_the_prices_of_a_profile(cli, tmp_path, run):
    file = tmp_path / "result.json"
    done = cli(f"evaluate {run} --data {TEST} --limit 8 --compare --profile horowitz-45nm-sram --json {file}")
    assert done.code == 0, done.err
    found = json.loads(file.read_text())
    rows = {row["network"]: row for row in found["compared"]}
    assert rows["spiking"]["snn"] == found["snn"] and rows["spiking"]["ratio"] == found["energy"]["counts"]
    assert rows["spiking, 8-bit weights"]["ratio"] == found["energy"]["counts-int8"]
    assert rows["W8A8, per tensor"]["ratio"] == pytest.approx(2.8 / 14.6)
    assert found["profile"] == "horowitz-45nm-sram"
    assert "energy (horowitz-45nm-sram)" in done.out and "W4A4, per channel" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--profile", "loihi"), "unknown hardware profile 'loihi'. Did you mean 'loihi-14nm'?"),
        (("--profile", "no.json"), "no.json: there is no such profile."),
        (("--compare", "--integer"), "--compare makes integer networks of its own"),
    ],
)
def test_what_does_not_fit_is_refused_first(cli, run, words, message):
    done = cli("evaluate", run, "--data", TEST, "--limit", 4, *words)
    assert done.code == 2 and message in done.err and not done.out


def test_profiles_are_listed_with_their_sources(cli):
    done = cli("list", "profiles")
    assert done.code == 0 and "horowitz-45nm " in done.out and "IEEE Micro" in done.out
