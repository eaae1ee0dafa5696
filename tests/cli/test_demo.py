"""`onespike demo`, with few images and without the trained weights: what it prints and what it writes."""

from __future__ import annotations

import pytest
from command_line import VIT, stored

from onespike import adapters, runs
from onespike.adapters import load_model
from onespike.reports import record


@pytest.fixture
def few(monkeypatch):
    choose, labeled = runs.choose, runs.choose_labeled
    monkeypatch.setattr(runs, "choose", lambda data, count: choose(data, 6))
    monkeypatch.setattr(runs, "choose_labeled", lambda loaded, data: labeled(loaded, data, None, 6))
    monkeypatch.setattr(record, "DRAWN_SCALES", (1.0, 0.25))


def test_demo(cli, few, monkeypatch, tmp_path, vit_weights):
    out = tmp_path / "new" / "demo"
    monkeypatch.setattr(adapters, "load_model", lambda name: load_model(name, weights=vit_weights))
    done = cli("demo", "--out", out).good()
    assert done.out.splitlines()[0] == f"network        {VIT} (vit.pth weights)"
    assert f"written to {out}: report.html" in done.out and "original (ANN)" in done.out
    titles = [line.partition(":")[0] for line in done.err.splitlines()]
    assert titles == ["calibrating", "evaluating", "λ = 1", "next"]
    figures = stored(out / "report.json")
    assert (figures["evaluation"]["images"], figures["evaluation"]["scale"]) == (6, 0.25)
    assert [point["scale"] for point in figures["front"]["points"]] == [1.0, 0.25]


def test_demo_of_segmentation(cli, few, tmp_path):
    assert "ANN mask AP" in cli("demo", "segmentation", "--out", tmp_path / "demo").good().out
    examples = stored(tmp_path / "demo" / "report.json")["examples"]
    assert [len(example["pictures"]) for example in examples] == [2]
