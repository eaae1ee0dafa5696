"""The bundled detector on the command line: convert, search λ by AP, evaluate, and the demo."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from command_line import noise

from onespike import runs
from onespike.runs import searching as tune
from onespike.studies import demo

SCENES, OTHERS = "bundled:scenes-calibration", "bundled:scenes-test"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    from onespike.adapters import load_model
    from onespike.recipe import preset

    folder = tmp_path_factory.mktemp("runs") / "scenes"
    pair = runs.convert_network(load_model("bundled:scenes"), runs.choose(SCENES, 8), preset("sformer"))
    runs.save(folder, pair)
    return folder


def test_search_finds_the_best_precision_of_masks(cli, run, tmp_path):
    search = ("search", run, "--data", SCENES, "--trials", 4, "--sampler", "grid", "--limit", 12)
    done = cli(*search, "--energy", "counts", "--json", tmp_path / "search.json")
    assert done.code == 0, done.err
    assert "best λ" in done.out
    record = json.loads((tmp_path / "search.json").read_text())
    assert (record["objective"], record["images"], record["forwards"]) == ("ap", 12, 4 * 12)
    values = {row["scale"]: row["value"] for row in record["trials"]}
    assert record["best"]["value"] == max(values.values()) > values[1.0]
    energies = [row["energy"] for row in sorted(record["trials"], key=lambda row: row["scale"])]
    assert energies == sorted(energies, reverse=True)
    pair = runs.load(run)
    assert pair.recipe.scale == record["best"]["scale"]
    items, _ = tune.search_images(pair, SCENES, 12)
    assert not set(items.names) & set(pair.data["names"])
    found = runs.evaluate_pair(pair, items).to_dict()
    assert found["snn"]["segm"]["AP"] == record["best"]["value"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--objective", "top1"), "the objective of bundled:scenes is ap or kl, not top1. Leave --objective out."),
        (("--compile",), "cannot be compiled as a whole. Leave --compile out."),
    ],
)  # fmt: skip
def test_what_a_detector_is_not_searched_by(cli, run, options, message):
    assert message in cli("search", run, "--data", SCENES, *options).message()


def test_a_report_shows_precision_and_pictures(cli, run, tmp_path):
    page, run = (
        tmp_path / "page",
        shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns(tune.FOLDER)),
    )
    done = cli("report", run, "--data", OTHERS, "--limit", 12, "--out", page)
    assert done.code == 0, done.err
    record = json.loads((page / "report.json").read_text())
    assert list(record["evaluation"]["snn"]) == ["bbox", "segm"]
    assert record["front"]["metric"] == "mask AP, %" and record["front"]["images"] == 12
    assert record["front"]["chosen"] == pytest.approx(runs.load(run).recipe.scale)
    shown = record["examples"]
    assert len(shown) == 6 and not shown[0]["agree"]
    for example in shown:
        assert example["agree"] == (not example["lost"] and not example["new"])
        both = [len(example["ann"]) - len(example["lost"]), len(example["snn"]) - len(example["new"])]
        assert both[0] == both[1]
        assert all(p.startswith("data:image/jpeg;base64,") for p in example["pictures"].values())
        assert example["trail"][0] == ["backbone.stage1.0:conv0_input", 99.0]
    html, markdown = (page / "report.html").read_text(), (page / "report.md").read_text()
    assert len(html) < 5e6
    for text in ("mask AP <b>", "Mask AP against energy", "boxes of the original are found again"):
        assert text in html
    assert (
        "## Precision" in markdown
        and "| class | ANN box AP | SNN box AP | ANN mask AP | SNN mask AP |" in markdown
    )


def test_detectors_are_compared_by_precision(cli, run, vit_run, images, tmp_path):
    out = tmp_path / "compared"
    assert cli("report", run, run, "--data", OTHERS, "--limit", 4, "--out", out).code == 0
    assert "mask AP, %" in (out / "compare.html").read_text()
    assert "| run | network | ANN box AP | SNN box AP | ANN mask AP |" in (out / "compare.md").read_text()
    other = shutil.copytree(vit_run, tmp_path / "vit")
    for each, data in ((run, OTHERS), (other, images)):
        assert cli("report", each, "--data", data, "--limit", 4).code == 0
    assert cli("report", run, other, "--out", out).message() == (
        "compare: these runs have different tasks. Compare runs of one task at a time."
    )


def test_the_doctor_examines_a_detector(cli, run, tmp_path):
    file = tmp_path / "doctor.json"
    words = ("--data", OTHERS, "--limit", 8, "--images", 8, "--batch-size", 4, "--json", file)
    done = cli("doctor", run, *words)
    assert done.code == 0, done.err
    record = json.loads(file.read_text())
    assert record["kl"] > 0 and record["normalizations"] == {}
    assert record["headline"]["title"] == "mask AP, %"
    assert set(record["kinds"].values()) and all(value >= 0 for value in record["kinds"].values())


def test_passes_of_a_detector_are_taken_apart(cli, run, tmp_path):
    words = ("--data", OTHERS, "--limit", 6, "--batch-size", 4, "--passes", "nearest,allocate")
    done = cli("doctor", shutil.copytree(run, tmp_path / "run"), *words, "--json", tmp_path / "rows.json")
    assert done.code == 0, done.err
    assert "mask AP, %" in done.out and "original: mask AP, %" in done.out
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["what"] for row in rows] == ["none", "nearest alone", "allocate alone", "all"]
    counts = [row["energy"]["counts"] for row in rows]
    assert max(counts) < 1.15 * min(counts)


def test_a_search_by_divergence_needs_no_annotations(cli, run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns(tune.FOLDER))
    for index in range(3):
        noise(tmp_path / "images" / f"{index}.png", index, 64)
    words = ("search", copy, "--data", tmp_path / "images", "--trials", 2, "--sampler", "grid")
    assert "Give the instances JSON with --annotations FILE." in cli(*words).message()
    done = cli(*words, "--objective", "kl")
    assert done.code == 0, done.err


def test_what_needs_annotations_or_classes_says_so(cli, run, vit_run):
    assert cli("report", run, "--annotations", "x.json").message() == (
        "--annotations says what is on the images of --data. Give both."
    )
    assert "boxes are scored with annotations" in cli("report", run, "--data", ".").message()


def test_a_classifier_is_not_searched_by_boxes(cli, vit_run, images):
    message = cli("search", vit_run, "--data", images, "--objective", "ap").message()
    assert message.endswith("is top1 or agreement or kl, not ap. Leave --objective out.")


def test_studies_take_the_networks_that_they_measure(cli, tmp_path):
    study = ("reproduce", "table-detection", "--out", tmp_path)
    message = cli(*study, "--model", "bundled:cifar10-vit").message()
    assert (
        message == "table-detection is about detection, and bundled:cifar10-vit is not. Give another --model."
    )
    message = cli(f"reproduce table-classification --model bundled:scenes --out {tmp_path}").message()
    assert (
        message
        == "table-classification is about classification, and bundled:scenes is not. Give another --model."
    )
    assert "Leave --calibrate out" in cli(*study, "--calibrate", SCENES).message()


def test_the_terminal_shows_the_essential_columns(cli, monkeypatch, tmp_path):
    words = ("reproduce", "table-detection", "--limit", 4, "--images", 4, "--out", tmp_path)
    monkeypatch.setattr(
        "onespike.studies.reproduce.bench.Bench.searched", lambda *given, **named: {"scale": 0.3}
    )
    done = cli(*words)
    assert done.code == 0, done.err
    header = next(line for line in done.out.splitlines() if "ann box AP" in line)
    assert max(map(len, done.out.splitlines()[:8])) < 140 and "ann box AP50" not in header
    assert re.search(r"with \d\d columns", done.out)
    assert "ann box AP50" in (tmp_path / "table-detection.csv").read_text()


def test_demo_of_segmentation(cli, monkeypatch, tmp_path):
    choose = runs.choose_labeled
    monkeypatch.setattr(runs, "choose_labeled", lambda loaded, data: choose(loaded, data, None, 6))
    done = cli("demo", "segmentation", "--out", tmp_path / "demo")
    assert done.code == 0, done.err
    assert "ANN mask AP" in done.out
    assert sorted(p.name for p in (tmp_path / "demo").iterdir()) == [
        "demo.json",
        "predictions.png",
        "sites.png",
    ]
    record = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert record["images"] == 6
    assert record["scale"] == pytest.approx(demo.SCENE_SCALE)
    assert cli("demo", "boxes").message().startswith("unknown demo 'boxes'")
