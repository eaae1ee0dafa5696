"""`onespike report`, `compare` and `doctor` on an untrained network: what they write, print and refuse."""

from __future__ import annotations

import json
import shutil

import pytest

from onespike.runs import storage


@pytest.fixture
def run(vit_run, tmp_path):
    """A copy, since a report is written into the run."""
    return shutil.copytree(vit_run, tmp_path / "run")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("onespike.reports.record.DRAWN_SCALES", (1.0,))
    monkeypatch.setattr("onespike.reports.record.EXAMPLES", 2)
    monkeypatch.setattr("onespike.diagnosis.measurement.PROBED_SCALES", (1.0, 0.25))
    monkeypatch.setattr("onespike.diagnosis.measurement.WORST_KINDS", 0)
    monkeypatch.setattr("onespike.diagnosis.measurement.PASSES", ("nearest",))
    monkeypatch.setattr(
        "onespike.diagnosis.measurement.VARIANTS", {"nearest rounding": {"rounding": "nearest"}}
    )


@pytest.mark.usefixtures("quick")
def test_a_report_and_a_comparison(cli, run, images, tmp_path):
    done = cli("report", run, "--data", images, "--limit", 4)
    assert done.code == 0, done.err
    assert done.out.startswith(f"written to {run / 'report'}: report.html (")
    record = json.loads((run / "report" / "report.json").read_text())
    assert record["evaluation"]["images"] == 4
    assert record["command"].startswith("onespike convert bundled:cifar10-vit --weights vit.pth")
    assert (run / "report" / "report.html").read_text().startswith("<!doctype html>")
    assert (run / "report" / "report.md").read_text().startswith("# bundled:cifar10-vit as a spiking network")
    storage.load(run)  # the report has not damaged it

    other, out = shutil.copytree(run, tmp_path / "other"), tmp_path / "compared"
    shown = cli("report", run, other, "--out", out)
    assert shown.code == 0 and shown.out.count(f"{record['evaluation']['energy'][record['energy']]:.3f}") == 2
    assert sorted(p.name for p in out.iterdir()) == [
        f"compare.{ending}" for ending in ("csv", "html", "json", "md", "tex")
    ]
    (other / "report" / "report.json").write_text("{")
    assert "report.json: the file is damaged (" in cli("report", run, other, "--out", out).message()
    shutil.rmtree(other / "report")
    assert (
        cli("report", run, other, "--out", out).message().startswith(f"{other}: it has no measured report.")
    )
    message = cli("report", run, "--energy", "counts").message()
    assert message == "--energy draws several runs, and there is one. Leave it out."


def test_a_report_without_data_says_what_is_missing(cli, run, tmp_path):
    assert cli("report", run, "--out", tmp_path / "page").code == 0
    assert "Nothing is measured here" in (tmp_path / "page" / "report.html").read_text()


@pytest.mark.usefixtures("quick")
def test_the_doctor(cli, run, images, tmp_path):
    done = cli("doctor", run, "--data", images, "--images", 4, "--sites", "--json", tmp_path / "d.json")
    assert done.code == 0, done.err
    assert "1. mistake: " in done.out and "   try: onespike " in done.out
    record = json.loads((tmp_path / "d.json").read_text())
    assert 1 <= len(record["findings"]) <= 5
    again = [f["command"] for f in record["findings"] if f["command"].startswith("onespike convert ")]
    assert again and all(f"--weights {run / 'weights.safetensors'} " in words for words in again)
    assert {"sites", "kinds", "scales", "normalizations"} <= set(record)
    assert cli("doctor", run, "--data", images, "--images", 1).message() == (
        "the doctor needs at least 2 images, not 1. Try --images 64."
    )


@pytest.mark.parametrize("command", ["report", "doctor", "report two"])
def test_a_damaged_run_is_named(cli, run, images, command):
    weights = run / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    words = (run, run) if command == "report two" else (run,)
    message = cli(command.split()[0], *words, "--data", images).message()
    assert message.startswith(
        f"{run}: the run is damaged: weights.safetensors is not the file that was saved"
    )


def test_a_normalization_is_kept_in_the_run(cli, images, vit_weights, tmp_path):
    given = ("--preprocess", "mean=0.5,0.5,0.5", "--preprocess", "std=0.5,0.5,0.5")
    words = (
        f"convert bundled:cifar10-vit --preset sformer --weights {vit_weights} --calibrate "
        f"{images} --limit 2",
    )
    out = tmp_path / "other"
    assert cli(*words, *given, "--out", out).code == 0
    record = json.loads((out / "run.json").read_text())
    assert record["network"]["normalization"] == [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]
    assert "then mean 0.5 0.5 0.5, std 0.5 0.5 0.5 instead" in cli("inspect", out).out
    message = cli(*words, "--preprocess", "mean=0.5", "--out", tmp_path / "x").message()
    assert message.startswith("--preprocess std takes numbers, not ''. Give both: ")
