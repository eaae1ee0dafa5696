"""Detectors on the command line: convert, search λ by AP, evaluate, draw, report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import stored

from image_folders import noise
from onespike import runs
from onespike.runs import searching

# transformers still decorates some functions with torch's old compiler when its modules are imported
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")
SCENES, OTHERS = "bundled:scenes-calibration", "bundled:scenes-test"


@pytest.fixture(scope="module")
def scenes(converted) -> Path:
    """A run of the bundled detector. Only to be read."""
    return converted("bundled:scenes", SCENES, 8)


@pytest.fixture
def run(scenes, tmp_path) -> Path:
    return shutil.copytree(scenes, tmp_path / "run")


def test_evaluate_scores_boxes(figures, detector_run, coco):
    words = f"evaluate {detector_run} --data {coco}/images --annotations {coco}/instances.json --batch-size 3"
    result, record = figures(words)
    assert record["images"] == 4 and record["objects"] == 8
    assert record["results"] == {"ann": 16, "snn": 16}
    assert set(record["classes"]) == {"cat", "dog"}
    assert 0 <= record["snn"]["bbox"]["AP"] <= 100
    assert 0 < record["energy"]["counts"] < 2
    for words in ("ANN box AP", "AP75", "4 images, 8 objects", "counts", "calibration"):
        assert words in result.out, words


def test_convert_in_the_backbone_alone(cli, detector, coco, tmp_path):
    words = f"convert transformers:{detector} --preset sformer --weights pretrained --calibrate {coco}/images"
    cli(words, "--set", "include=backbone", "--out", tmp_path / "run").good()
    shown = cli("inspect", tmp_path / "run").out
    assert "class_labels_classifier.layers.0:linear0_input (not included)" in shown
    spiking = [line for line in shown.splitlines() if "ScaleFire" in line or "θ" in line]
    assert spiking and not any("predictor" in line for line in spiking)


def test_search_finds_the_best_precision_of_masks(figures, run):
    done, record = figures(
        f"search {run} --data {SCENES} --trials 3 --sampler grid --limit 8 --energy counts"
    )
    assert "best λ" in done.out
    assert (record["objective"], record["images"], record["forwards"]) == ("ap", 8, 3 * 8)
    values = {row["scale"]: row["value"] for row in record["trials"]}
    assert record["best"]["value"] == max(values.values()) > values[1.0]
    energies = [row["energy"] for row in sorted(record["trials"], key=lambda row: row["scale"])]
    assert energies == sorted(energies, reverse=True)
    pair = runs.load(run)
    assert pair.recipe.scale == record["best"]["scale"]
    items, _ = searching.search_images(pair, SCENES, 8)
    assert not set(items.names) & set(pair.data["names"])
    assert runs.evaluate_pair(pair, items).to_dict()["snn"]["segm"]["AP"] == record["best"]["value"]


def test_a_search_by_divergence_needs_no_annotations(cli, run, tmp_path):
    for index in range(3):
        noise(tmp_path / "images" / f"{index}.png", index, 64)
    words = f"search {run} --data {tmp_path / 'images'} --trials 2 --sampler grid"
    assert "boxes are scored with annotations. Give --annotations FILE." in cli(words).message()
    cli(words, "--objective", "kl").good()


def test_a_report_shows_precision_and_pictures(cli, run, monkeypatch):
    monkeypatch.setattr("onespike.reports.record.DRAWN_SCALES", (1.0,))
    monkeypatch.setattr("onespike.reports.record.EXAMPLES", 6)
    cli(f"report {run} --data {OTHERS} --limit 12").good()
    page = run / "report"
    record = stored(page / "report.json")
    assert list(record["evaluation"]["snn"]) == ["bbox", "segm"]
    assert record["front"]["metric"] == "mask AP, %" and record["front"]["images"] == 12
    assert record["front"]["chosen"] == pytest.approx(runs.load(run).recipe.scale)
    examples = record["examples"]
    assert len(examples) == 6 and not examples[0]["agree"]
    for example in examples:
        assert example["agree"] == (not example["lost"] and not example["new"])
        ann, snn = len(example["ann"]) - len(example["lost"]), len(example["snn"]) - len(example["new"])
        assert ann == snn
        assert all(p.startswith("data:image/jpeg;base64,") for p in example["pictures"].values())
        assert example["trail"][0] == ["backbone.stage1.0:conv0_input", 99.0]
    assert len((page / "report.html").read_text()) < 5e6
    header = "| class | ANN box AP | SNN box AP | ANN mask AP | SNN mask AP |"
    assert header in (page / "report.md").read_text()


def test_detectors_are_compared_by_precision(cli, run, vit_run, images, tmp_path):
    out = tmp_path / "compared"
    cli(f"report {run} {run} --data {OTHERS} --limit 4 --out {out}").good()
    assert "mask AP, %" in (out / "compare.html").read_text()
    assert "| run | network | ANN box AP | SNN box AP | ANN mask AP |" in (out / "compare.md").read_text()
    other = shutil.copytree(vit_run, tmp_path / "vit")
    for each, data in ((run, OTHERS), (other, images)):
        cli("report", each, "--data", data, "--limit", 4).good()
    message = "compare: these runs have different tasks. Compare runs of one task at a time."
    assert cli("report", run, other, "--out", out).message() == message


def test_the_doctor_examines_a_detector(figures, run):
    words = f"doctor {run} --data {OTHERS} --batch-size 4"
    _, record = figures(f"{words} --limit 8 --images 8")
    assert record["kl"] > 0 and record["normalizations"] == {}
    assert record["headline"]["title"] == "mask AP, %"
    assert set(record["kinds"].values()) and all(value >= 0 for value in record["kinds"].values())
    done, record = figures(f"{words} --limit 6 --passes nearest,allocate")
    assert "mask AP, %" in done.out and "original: mask AP, %" in done.out
    assert [row["what"] for row in record["rows"]] == ["none", "nearest alone", "allocate alone", "all"]
    counts = [row["energy"]["counts"] for row in record["rows"]]
    assert max(counts) < 1.15 * min(counts)
