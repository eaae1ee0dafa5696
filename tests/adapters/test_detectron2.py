"""The adapter of detectron2 against its interfaces: load, calibrate, convert, save, evaluate; what it refuses."""

from __future__ import annotations

import json
import pickle
import sys

import fake_detectron2
import pytest
import torch
from PIL import Image

from onespike import runs
from onespike.adapters import load_model
from onespike.adapters.bundled import SCENE_CLASSES
from onespike.conversion.network import table
from onespike.errors import LoadError, UsageError
from onespike.recipe import preset

LAZY = """
from fake_detectron2 import GeneralizedRCNN, ResizeShortestEdge
from types import SimpleNamespace

model = {"_target_": GeneralizedRCNN, "width": 6}
resize = {"_target_": ResizeShortestEdge, "short_edge_length": 32, "max_size": 64}
mapper = SimpleNamespace(augmentations=[resize], image_format="RGB")
test = SimpleNamespace(mapper=mapper, dataset=SimpleNamespace(names="clothes"))
dataloader = SimpleNamespace(test=test)
"""


@pytest.fixture(autouse=True)
def library(monkeypatch):
    torch.manual_seed(0)
    fake_detectron2.install(monkeypatch, SCENE_CLASSES)


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps({"MODEL": {"WIDTH": 6}}))
    return file


@pytest.fixture
def lazy(tmp_path, monkeypatch):
    file = tmp_path / "small.py"
    file.write_text(LAZY)
    monkeypatch.setenv("ONESPIKE_TRUST_CONFIG", "1")
    return file


@pytest.mark.parametrize("kind", ["config", "lazy"])
def test_a_detector_goes_the_whole_way(kind, request, tmp_path):
    spec, run = f"detectron2:{request.getfixturevalue(kind)}", tmp_path / "run"
    loaded = load_model(spec, random_weights=True)
    assert loaded.task.masks and loaded.task.class_names == SCENE_CLASSES
    assert loaded.backbone == ("backbone[.:]*",)
    calibration = runs.choose("bundled:scenes-calibration", 4)
    pair = runs.convert_network(loaded, calibration, preset("sformer", scale=1.0), batch_size=2)
    roles = {row["site"]: row["role"] for row in table(pair.snn)}
    assert roles == {
        "backbone.0:conv0_input": "input",
        "backbone.2:conv0_input": "activation",
        "roi_heads:conv0_input": "head",
    }
    runs.save(run, pair)
    again = runs.load(run)
    items = runs.choose_labeled(again.loaded, "bundled:scenes-test", None, 4)
    figures = []
    for each in (pair, again):
        metric = each.loaded.task.metric(items)
        result = runs.evaluate_pair(each, items, metric=metric, batch_size=2).to_dict()
        figures.append((result["ann"], result["snn"], metric.predictions))
    assert figures[0] == figures[1]
    ann, snn = (figures[0][2][key] for key in ("ann", "snn"))
    assert len(ann) == len(snn) == 4 * 3 and ann != snn
    assert ann[0]["segmentation"]["size"] == [64, 64]


@pytest.mark.parametrize(("kind", "first"), [("config", 30), ("lazy", 10)])
def test_an_image_is_resized_in_the_order_of_colors_of_the_configuration(kind, first, request):
    loaded = load_model(f"detectron2:{request.getfixturevalue(kind)}", random_weights=True)
    entry = loaded.reading.transform(Image.new("RGB", (128, 64), (10, 20, 30)))
    assert (entry["height"], entry["width"]) == (64, 128)
    assert entry["image"].shape == (3, 32, 64) and entry["image"].dtype == torch.float32
    assert entry["image"][:, 0, 0].tolist() == [first, 20, 40 - first]
    assert "mean 103 116 123, std 60 60 60" in loaded.reading.preprocessing


def test_tensors_that_older_checkpoints_hold_are_left_out(config, tmp_path):
    torch.manual_seed(5)
    trained = fake_detectron2.GeneralizedRCNN(6)
    anchors = "proposal_generator.anchor_generator.cell_anchors.0"
    old = {anchors: torch.ones(3, 4), "pixel_mean": torch.ones(3, 1, 1)}
    file = tmp_path / "model_final.pth"
    torch.save({"model": {**trained.state_dict(), **old}, "iteration": 9}, file)
    loaded = load_model(f"detectron2:{config}", weights=file)
    assert torch.equal(loaded.model.roi_heads.weight, trained.roi_heads.weight)
    torch.save({"model": {**trained.state_dict(), "other.weight": torch.ones(1)}}, file)
    with pytest.raises(LoadError, match=r"1 unexpected, first other\.weight"):
        load_model(f"detectron2:{config}", weights=file)


def test_pickles_are_never_opened(config, tmp_path):
    class Harm:
        def __reduce__(self):
            return (exec, ("raise SystemExit('run')",))

    file = tmp_path / "model_final.pkl"
    file.write_bytes(pickle.dumps(Harm()))
    for source in ({"weights": file}, {"pretrained": True}):
        with pytest.raises(LoadError, match=r"which may hold code and are never opened\. Where"):
            load_model(f"detectron2:{config}", **source)


def test_what_cannot_or_must_not_be_built_is_named(config, lazy, tmp_path, monkeypatch):
    lazy.write_text("raise SystemExit('run')")
    monkeypatch.delenv("ONESPIKE_TRUST_CONFIG")
    with pytest.raises(UsageError, match=r"which would be run\. If you trust it, set ONESPIKE_TRUST"):
        load_model(f"detectron2:{lazy}", random_weights=True)
    with pytest.raises(LoadError, match="no such configuration"):
        load_model(f"detectron2:{tmp_path / 'none.yaml'}", random_weights=True)
    with pytest.raises(UsageError, match="Leave attention out"):
        load_model(f"detectron2:{config}", random_weights=True, attention="eager")
    config.write_text('{"OTHER": {}}')
    with pytest.raises(LoadError, match="KeyError: 'Non-existent config key: OTHER'"):
        load_model(f"detectron2:{config}", random_weights=True)
    monkeypatch.setitem(sys.modules, "detectron2.config", None)
    with pytest.raises(LoadError, match=r"detectron2 cannot be imported .* install it from its repository"):
        load_model(f"detectron2:{config}", random_weights=True)


def test_classes_without_a_catalog_are_numbered(config):
    config.write_text(json.dumps({"DATASETS": {"TEST": ["my_data"]}}))
    names = load_model(f"detectron2:{config}", random_weights=True).task.class_names
    assert names[:2] == ("class 0", "class 1")
