"""Detectors on the command line: convert, evaluate by COCO's AP, draw, and refuse bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from command_line import noise
from PIL import Image

# transformers still decorates some functions with torch's old compiler when its modules are imported
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def detector(tmp_path_factory) -> Path:
    """A tiny YOLOS with its image processor, as `save_pretrained` writes both."""
    from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessor

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("detector")
    config = YolosConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=[64, 64],
        patch_size=16, num_detection_tokens=4, initializer_range=0.4, id2label={0: "cat", 1: "dog"},
        label2id={"cat": 0, "dog": 1},
    )  # fmt: skip
    YolosForObjectDetection(config).save_pretrained(path)
    YolosImageProcessor(size={"height": 64, "width": 64}).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def coco(tmp_path_factory) -> tuple[Path, Path]:
    """Four images of noise with two objects each; category ids have gaps."""
    root = tmp_path_factory.mktemp("coco")
    images, annotations = [], []
    for number in range(4):
        noise(root / "images" / f"{number}.png", number, side=48)
        images.append({"id": 7 * number, "file_name": f"{number}.png", "width": 48, "height": 48})
        for category in (2, 40):
            box = [4.0 * number, category / 2, 20.0, 20.0]
            annotations.append({
                "id": len(annotations) + 1, "image_id": 7 * number, "category_id": category, "bbox": box,
                "area": 400.0, "iscrowd": 0, "segmentation": [],
            })  # fmt: skip
    record = {
        "images": images, "annotations": annotations,
        "categories": [{"id": 2, "name": "cat"}, {"id": 40, "name": "dog"}],
    }  # fmt: skip
    (root / "instances.json").write_text(json.dumps(record))
    return root / "images", root / "instances.json"


@pytest.fixture(scope="module")
def run(tmp_path_factory, detector, coco) -> Path:
    from onespike import runs
    from onespike.adapters import load_model
    from onespike.recipe import Recipe

    folder = tmp_path_factory.mktemp("runs") / "detector"
    loaded = load_model(f"transformers:{detector}", pretrained=True)
    assert (loaded.task.name, loaded.task.masks, loaded.backbone) == ("detection", False, ("vit[.:]*",))
    pair = runs.convert_network(loaded, runs.choose(str(coco[0]), None), Recipe(), batch_size=2)
    runs.save(folder, pair)
    return folder


def test_evaluate_scores_boxes_and_draws_them(cli, run, coco, tmp_path):
    images, annotations = coco
    result = cli("evaluate", run, "--data", images, "--annotations", annotations, "--batch-size", 3,
                 "--picture", tmp_path / "both.png", "--json", tmp_path / "result.json")  # fmt: skip
    assert result.code == 0, result.err
    record = json.loads((tmp_path / "result.json").read_text())
    assert record["images"] == 4 and record["objects"] == 8
    assert record["results"] == {"ann": 16, "snn": 16}
    assert set(record["classes"]) == {"cat", "dog"}
    assert 0 <= record["snn"]["bbox"]["AP"] <= 100
    assert 0 < record["energy"]["counts"] < 2
    for words in ("ANN box AP", "AP75", "4 images, 8 objects", "counts", "calibration"):
        assert words in result.out, words
    with Image.open(tmp_path / "both.png") as picture:
        assert picture.width > 1000


def test_convert_in_the_backbone_alone(cli, detector, coco, tmp_path):
    result = cli("convert", f"transformers:{detector}", "--preset", "sformer", "--weights", "pretrained", "--calibrate", coco[0], "--set", "include=backbone",
                 "--out", tmp_path / "run")  # fmt: skip
    assert result.code == 0, result.err
    shown = cli("inspect", tmp_path / "run").out
    assert "class_labels_classifier.layers.0:linear0_input (not included)" in shown
    spiking = [line for line in shown.splitlines() if "ScaleFire" in line or "θ" in line]
    assert spiking and not any("predictor" in line for line in spiking)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "boxes are scored with annotations"),
        (("--annotations", "absent.json"), "absent.json: no such file"),
    ],
)
def test_evaluation_needs_annotations(cli, run, coco, options, message):
    assert message in cli("evaluate", run, "--data", coco[0], *options).message()


def test_missing_images_are_named(cli, run, coco, tmp_path):
    noise(tmp_path / "0.png", 0, side=48)
    message = cli("evaluate", run, "--data", tmp_path, "--annotations", coco[1]).message()
    assert "1.png: the file of image id 7 is missing" in message


def test_empty_annotations_and_corrupt_images_end_with_their_names(cli, run, coco, tmp_path):
    record = json.loads(coco[1].read_text())
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps({**record, "annotations": []}))
    evaluate = ("evaluate", run, "--data", coco[0], "--annotations")
    assert f"{empty}: its list 'annotations' is empty" in cli(*evaluate, empty).message()
    images = shutil.copytree(coco[0], tmp_path / "images")
    whole = (images / "2.png").read_bytes()
    for contents in (b"nothing", whole[: len(whole) // 2]):
        (images / "2.png").write_bytes(contents)
        message = cli("evaluate", run, "--data", images, "--annotations", coco[1]).message()
        assert f"{images / '2.png'}: image id 14 cannot be read" in message


def test_search_needs_annotations(cli, run, coco):
    message = cli("search", run, "--data", coco[0], "--trials", 2).message()
    assert "boxes are scored with annotations" in message


def test_classifiers_have_no_use_for_boxes(cli, vit_run, images, coco):
    evaluate = ("evaluate", vit_run, "--data", images)
    assert "Leave --annotations out" in cli(*evaluate, "--annotations", coco[1]).message()
    assert "Leave it out" in cli(*evaluate, "--picture", "both.png").message()


def test_scopes(cli, detector, coco, tmp_path):
    convert = (
        f"convert transformers:{detector} --preset sformer --weights pretrained --calibrate "
        f"{coco[0]} --out {tmp_path / 'r'}",
    )
    assert (
        "Give one of them" in cli(*convert, "--set", "include=backbone", "--set", "include=vit.*").message()
    )
    vit = (
        "convert bundled:cifar10-vit --preset sformer --weights random --calibrate "
        "bundled:cifar10-calibration",
    )
    message = cli(*vit, "--limit", 2, "--out", tmp_path / "r", "--set", "include=backbone").message()
    assert "has no backbone apart from the rest" in message
