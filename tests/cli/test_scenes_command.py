"""The bundled detector on the command line: convert, search λ by AP, evaluate, and the demo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onespike import demo, pipeline, tune

SCENES, OTHERS = "bundled:scenes-calibration", "bundled:scenes-test"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    from onespike.adapters import load_model
    from onespike.recipe import preset

    folder = tmp_path_factory.mktemp("runs") / "scenes"
    pair = pipeline.convert_network(
        load_model("bundled:scenes"), pipeline.choose(SCENES, 8), preset("sformer")
    )
    pipeline.save_run(folder, pair)
    return folder


def test_search_finds_the_best_precision_of_masks(cli, run, tmp_path):
    search = ("search", run, "--data", SCENES, "--trials", 4, "--sampler", "grid", "--limit", 12)
    done = cli(*search, "--pareto", "--json", tmp_path / "search.json")
    assert done.code == 0, done.err
    assert "best λ" in done.out
    record = json.loads((tmp_path / "search.json").read_text())
    assert (record["objective"], record["images"], record["forwards"]) == ("ap", 12, 4 * 12)
    values = {row["scale"]: row["value"] for row in record["trials"]}
    assert record["best"]["value"] == max(values.values()) > values[1.0]
    energies = [row["energy"] for row in sorted(record["trials"], key=lambda row: row["scale"])]
    assert energies == sorted(energies, reverse=True)
    pair = pipeline.load_run(run)
    assert pair.recipe.scale == record["best"]["scale"]
    items, _, coco = tune.search_images(pair, SCENES, 12)
    assert not set(items.names) & set(pair.data["names"])
    metric = pipeline.metric_for(pair, items, coco)
    found = pipeline.evaluate_pair(pair, items, metric=metric).to_dict()
    assert found["snn"]["segm"]["AP"] == record["best"]["value"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--objective", "kl"), "the objective of bundled:scenes is ap, not kl. Leave --objective out."),
        (("--per-site", "kind"), "--per-site and --compile are for classifiers. Leave them out for bundled:scenes."),
    ],
)  # fmt: skip
def test_what_a_detector_is_not_searched_by(cli, run, options, message):
    assert message in cli("search", run, "--data", SCENES, *options).message()


def test_a_classifier_is_not_searched_by_boxes(cli, vit_run, images):
    message = cli("search", vit_run, "--data", images, "--objective", "ap").message()
    assert message.endswith("is top1 or kl, not ap. Leave --objective out.")


def test_studies_take_the_networks_that_they_measure(cli, tmp_path):
    study = ("reproduce", "table-detection", "--out", tmp_path)
    message = cli(*study, "--model", "bundled:cifar10-vit").message()
    assert (
        message
        == "table-detection measures detectors, and bundled:cifar10-vit is none. Give another --model."
    )
    message = cli("reproduce", "table-energy", "--model", "bundled:scenes").message()
    assert message == "table-energy measures classifiers, and bundled:scenes is none. Give another --model."
    assert "Leave --calibrate out" in cli(*study, "--calibrate", SCENES).message()


def test_demo_of_segmentation(cli, monkeypatch, tmp_path):
    choose = pipeline.choose_labelled
    monkeypatch.setattr(pipeline, "choose_labelled", lambda *given: choose(*given[:3], 6))
    done = cli("demo", "--task", "segmentation", "--out", tmp_path / "demo")
    assert done.code == 0, done.err
    assert "masks ANN" in done.out
    assert sorted(p.name for p in (tmp_path / "demo").iterdir()) == [
        "demo.json",
        "predictions.png",
        "sites.png",
    ]
    record = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert record["images"] == 6
    assert record["scale"] == pytest.approx(demo.SCENE_SCALE)
    assert cli("demo", "--task", "boxes").message().startswith("unknown demo 'boxes'")
