"""`onespike report`, `doctor` and `push` on an untrained network: what they write, print and refuse."""

from __future__ import annotations

import shutil

import pytest
from command_line import stored

from onespike.runs import storage


def test_a_report_and_a_comparison(cli, run, images, tmp_path):
    done = cli("report", run, "--data", images, "--limit", 4).good()
    assert done.out.startswith(f"written to {run / 'report'}: report.html (")
    record = stored(run / "report" / "report.json")
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
    shutil.rmtree(other / "report")
    message = cli("report", run, other, "--out", out).message()
    assert message.startswith(f"{other}: no measured report.")


def test_the_doctor(figures, run, images, monkeypatch):
    monkeypatch.setattr("onespike.diagnosis.measurement.PROBED_SCALES", (1.0, 0.25))
    monkeypatch.setattr("onespike.diagnosis.measurement.PASSES", ("nearest",))
    done, record = figures("doctor", run, "--data", images, "--images", 4)
    assert "1. mistake: " in done.out and "   try: onespike " in done.out
    assert 1 <= len(record["findings"]) <= 5
    again = [f["command"] for f in record["findings"] if f["command"].startswith("onespike convert ")]
    assert again and all(f"--weights {run / 'weights.safetensors'} " in words for words in again)
    assert {"sites", "kinds", "scales", "normalizations"} <= set(record)


def test_a_normalization_is_kept_in_the_run(cli, images, vit_weights, tmp_path):
    given = ("--preprocess", "mean=0.5,0.5,0.5", "--preprocess", "std=0.5,0.5,0.5")
    words = f"convert bundled:cifar10-vit --preset sformer --weights {vit_weights} --limit 2"
    out = tmp_path / "other"
    cli(words, "--calibrate", images, *given, "--out", out).good()
    assert stored(out / "run.json")["network"]["normalization"] == [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]
    assert "then mean 0.5 0.5 0.5, std 0.5 0.5 0.5 instead" in cli("inspect", out).out


def test_a_card_has_the_figures_of_the_run_s_report(cli, run):
    done = cli("push", run, "--license", "mit").good()
    assert "Not measured." in (run / "README.md").read_text()
    assert "onespike report RUN --data DIR" in done.err
    cli("report", run, "--data", "bundled:cifar10-test", "--limit", 4).good()
    cli("push", run, "--license", "mit").good()
    assert "| network | top-1 % | 95 % |" in (run / "README.md").read_text()


def test_an_upload_that_fails(cli, run, monkeypatch):
    """Whatever the client of the Hub raises is one line; the run stays a run."""
    hub = pytest.importorskip("huggingface_hub")

    class Absent:
        def create_repo(self, *_: object, **__: object) -> None:
            raise ValueError("no answer\nat all")

    monkeypatch.setattr(hub, "HfApi", Absent)
    result = cli("push", run, "me/vit", "--license", "mit")
    assert 'from_pretrained("me/vit")' in (run / "README.md").read_text()
    assert result.code == 2 and result.err.splitlines()[-1] == (
        "onespike: me/vit: the run cannot be uploaded (no answer). "
        "Check the name, your token and the network connection, then push again."
    )
