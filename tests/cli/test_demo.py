"""`onespike demo`, with few images and without the trained weights: what it prints and what it writes."""

from __future__ import annotations

from command_line import VIT, stored

from onespike import runs
from onespike.adapters import load_model
from onespike.studies import demo


def test_demo(cli, monkeypatch, tmp_path, vit_weights):
    choose, labeled, out = runs.choose, runs.choose_labeled, tmp_path / "new" / "demo"
    monkeypatch.setattr(demo, "load_model", lambda name: load_model(name, weights=vit_weights))
    monkeypatch.setattr(demo, "SCALES", (1.0, 0.25))
    monkeypatch.setattr(runs, "choose", lambda data, count: choose(data, 6))
    monkeypatch.setattr(runs, "choose_labeled", lambda loaded, data, count=6: labeled(loaded, data, None, 6))
    done = cli("demo", "--out", out).good()
    assert done.out.splitlines()[0] == f"network        {VIT} (vit.pth weights)"
    assert done.out.splitlines()[-1] == f"written to {out}: demo.json, overview.png, sites.png"
    titles = [line.partition(":")[0] for line in done.err.splitlines()]
    assert titles == ["calibrating", "evaluating", "λ = 1", "λ = 0.25", "next"]
    assert sorted(p.name for p in out.iterdir()) == ["demo.json", "overview.png", "sites.png"]
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in ("overview.png", "sites.png"))
    record = stored(out / "demo.json")
    assert (record["images"], record["scale"]) == (6, 0.25)
    rows = {row["scale"]: row for row in record["sweep"]}
    assert list(rows) == [1.0, 0.25]
    assert rows[0.25]["counts"] == record["energy"]["counts"]
    assert rows[0.25]["score"] == record["snn"]["top1"]


def test_demo_of_segmentation(cli, monkeypatch, tmp_path):
    choose, out = runs.choose_labeled, tmp_path / "demo"
    monkeypatch.setattr(runs, "choose_labeled", lambda loaded, data: choose(loaded, data, None, 6))
    assert "ANN mask AP" in cli("demo", "segmentation", "--out", out).good().out
    assert sorted(p.name for p in out.iterdir()) == ["demo.json", "predictions.png", "sites.png"]
    assert stored(out / "demo.json")["images"] == 6
