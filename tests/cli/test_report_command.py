"""`onespike report`, `compare` and `doctor` on an untrained network: what they write, print and refuse."""

from __future__ import annotations

import json
import shutil

from onespike.runs import storage


def test_a_report_and_a_comparison(cli, run, images, tmp_path):
    done = cli("report", run, "--data", images, "--limit", 4).good()
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


def test_a_report_without_data_says_what_is_missing(cli, run, tmp_path):
    cli("report", run, "--out", tmp_path / "page").good()
    assert "Nothing is measured here" in (tmp_path / "page" / "report.html").read_text()


def test_the_doctor(cli, run, images, tmp_path, monkeypatch):
    monkeypatch.setattr("onespike.diagnosis.measurement.PROBED_SCALES", (1.0, 0.25))
    monkeypatch.setattr("onespike.diagnosis.measurement.PASSES", ("nearest",))
    done = cli(
        "doctor", run, "--data", images, "--images", 4, "--sites", "--json", tmp_path / "d.json"
    ).good()
    assert "1. mistake: " in done.out and "   try: onespike " in done.out
    record = json.loads((tmp_path / "d.json").read_text())
    assert 1 <= len(record["findings"]) <= 5
    again = [f["command"] for f in record["findings"] if f["command"].startswith("onespike convert ")]
    assert again and all(f"--weights {run / 'weights.safetensors'} " in words for words in again)
    assert {"sites", "kinds", "scales", "normalizations"} <= set(record)


def test_a_normalization_is_kept_in_the_run(cli, images, vit_weights, tmp_path):
    given = ("--preprocess", "mean=0.5,0.5,0.5", "--preprocess", "std=0.5,0.5,0.5")
    words = f"convert bundled:cifar10-vit --preset sformer --weights {vit_weights} --limit 2"
    out = tmp_path / "other"
    cli(words, "--calibrate", images, *given, "--out", out).good()
    record = json.loads((out / "run.json").read_text())
    assert record["network"]["normalization"] == [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]
    assert "then mean 0.5 0.5 0.5, std 0.5 0.5 0.5 instead" in cli("inspect", out).out
