"""COCO data and AP: equal to pycocotools on its own way, and bad data named by file and id."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest
import torch
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from onespike.adapters.detection import run_lengths
from onespike.errors import DataError
from onespike.tasks import Detection, category_ids, limit, list_coco, read_coco, read_image
from onespike.tasks.detection import FIGURES

MODES = ("RGB", "L", "CMYK")


def annotation(number: int, image: int, category: int, box: list[float], crowd: int = 0) -> dict:
    x, y, w, h = box
    mask = torch.zeros(40, 60)
    mask[int(y) : int(y + h), int(x) : int(x + w)] = 1
    shape = run_lengths(mask) if crowd else [[x, y, x + w, y, x + w, y + h, x, y + h]]
    return {
        "id": number, "image_id": image, "category_id": category, "bbox": box, "area": w * h, "iscrowd": crowd,
        "segmentation": shape,
    }  # fmt: skip


@pytest.fixture
def data(tmp_path) -> tuple[Path, Path]:
    """Three images (RGB, grey, CMYK), categories with gaps, small and large objects, and a crowd."""
    draw = random.Random(0)
    folder, record = tmp_path / "images", {"images": [], "annotations": [], "categories": []}
    folder.mkdir()
    record["categories"] = [{"id": 3, "name": "cat"}, {"id": 90, "name": "dog"}, {"id": 7, "name": "cup"}]
    for image, mode in enumerate(MODES):
        name = f"{image}.jpg"
        Image.new(mode, (60, 40)).save(folder / name)
        record["images"].append({"id": 10 * image + 5, "file_name": name, "width": 60, "height": 40})
        for _ in range(4):
            box = [draw.randint(0, 25), draw.randint(0, 15), draw.randint(5, 34), draw.randint(5, 24)]
            number = len(record["annotations"]) + 1
            record["annotations"].append(annotation(number, 10 * image + 5, draw.choice([3, 90]), box))
    record["annotations"].append(annotation(99, 5, 3, [0, 0, 30, 30], crowd=1))
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(record))
    return folder, file


def guesses(record: dict, seed: int) -> list[dict]:
    """The truth, shaken, in part under another class, in part missing, with boxes inside the crowd."""
    draw, found = random.Random(seed), []
    for truth in record["annotations"]:
        for _ in range(2):
            x, y, w, h = (v + draw.randint(-2, 2) for v in truth["bbox"])
            box = [max(x, 0), max(y, 0), max(w, 3), max(h, 3)]
            category = truth["category_id"] if draw.random() < 0.8 else draw.choice([3, 7, 90])
            mask = torch.zeros(40, 60)
            mask[int(box[1]) : int(box[1] + box[3]), int(box[0]) : int(box[0] + box[2])] = 1
            found.append({
                "image_id": truth["image_id"], "category_id": category, "bbox": box, "score": draw.random(),
                "segmentation": run_lengths(mask),
            })  # fmt: skip
    return found


def reference(file: Path, found: list[dict], kind: str, keys: tuple[str, ...], tmp_path: Path) -> list[float]:
    """pycocotools from files, as its own example does it."""
    saved = tmp_path / f"{kind}.json"
    saved.write_text(json.dumps([{k: r[k] for k in keys} for r in found]))
    truth = COCO(str(file))
    evaluator = COCOeval(truth, truth.loadRes(str(saved)), kind)
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    return list(evaluator.stats)


def test_figures_are_those_of_pycocotools(data, tmp_path):
    folder, file = data
    items, coco = list_coco(folder, file)
    found = {"ann": guesses(coco.record, 1), "snn": guesses(coco.record, 2)}
    metric = Detection(coco, lambda output, images: _of(output, images), "segmentation")
    for start in (0, 2):
        part = items.items[start : start + 2]
        metric.update(found["ann"], found["snn"], torch.tensor([item.label for item in part]))
    scores = metric.compute()
    base = ("image_id", "category_id", "score")
    for network in ("ann", "snn"):
        for kind, shape in (("bbox", "bbox"), ("segm", "segmentation")):
            expected = reference(file, found[network], kind, (*base, shape), tmp_path)
            for name, value in zip(FIGURES, expected, strict=True):
                actual = scores[network][kind][name]
                assert (actual is None) if value < 0 else actual == pytest.approx(100 * value, abs=1e-9), name
    assert 5 < scores["ann"]["bbox"]["AP"] < 95
    assert scores["ann"]["bbox"]["AP"] != scores["snn"]["bbox"]["AP"]
    assert set(scores["classes"]) == {"cat", "dog"}  # no cup is annotated
    rows = [row["ann"]["bbox"] for row in scores["classes"].values()]
    assert sum(rows) / len(rows) == pytest.approx(scores["ann"]["bbox"]["AP"])
    json.dumps(scores)


def _of(found, images):
    numbers = {image["id"] for image in images}
    return [r for r in found if r["image_id"] in numbers]


def test_only_the_images_that_were_run_are_scored(data):
    folder, file = data
    items, coco = list_coco(folder, file)
    metric = Detection(coco, _of)
    perfect = [{**a, "score": 1.0} for a in coco.record["annotations"] if not a["iscrowd"]]
    metric.update(perfect, [], torch.tensor([limit(items, 1)[0].label]))
    scores = metric.compute()
    assert scores["ann"]["bbox"]["AP"] == pytest.approx(100)
    assert scores["snn"]["bbox"]["AP"] == 0
    assert scores["objects"] == 5


def test_results_are_checked(data):
    folder, file = data
    _, coco = list_coco(folder, file)
    good = {"image_id": 5, "category_id": 3, "bbox": [0, 0, 5, 5], "score": 0.5}
    for change, message in (
        ({"category_id": 4}, "names category 4 in image 5"),
        ({"image_id": 15}, "names category 3 in image 15"),
        ({"score": float("nan")}, "is not finite"),
    ):
        metric = Detection(coco, lambda output, images: output)
        with pytest.raises(DataError, match=message):
            metric.update([{**good, **change}], [], torch.tensor([5]))
    metric = Detection(coco, lambda output, images: output, categories={1: 3})
    metric.update([{**good, "category_id": 1}, {**good, "category_id": 8}], [], torch.tensor([5]))
    assert [r["category_id"] for r in metric.found["ann"]] == [3]


def test_grey_and_cmyk_images_become_rgb(data):
    items, _ = list_coco(*data)
    assert [read_image(item).mode for item in items] == ["RGB"] * 3
    assert [item.label for item in items] == [5, 15, 25]


def broken(file: Path, change) -> Path:
    record = copy.deepcopy(json.loads(file.read_text()))
    change(record)
    file.write_text(json.dumps(record))
    return file


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["annotations"].clear(), "its list 'annotations' is empty"),
        (lambda r: r.pop("categories"), "it has no list 'categories'"),
        (lambda r: r["annotations"][2].update(image_id=77), "annotation 3 has image_id 77"),
        (lambda r: r["annotations"][2].update(category_id=4), "annotation 3 has category_id 4"),
        (lambda r: r["images"][1].update(id=5), "two images have the id 5"),
        (lambda r: r["images"][1].pop("width"), "an entry lacks 'width'"),
        (lambda r: r["annotations"].append(5), "an entry is not of COCO's form"),
        (lambda r: r["annotations"][2].update(image_id=[5]), "an entry is not of COCO's form"),
        (lambda r: r["annotations"][2].update(bbox=None), "an entry is not of COCO's form"),
        (lambda r: r["annotations"][2].update(bbox=[1, 2, 3]), r"annotation 3 has the box \[1, 2, 3\]"),
        (lambda r: r["annotations"][2].update(area="large"), "annotation 3 has .* the area large"),
        (
            lambda r: r["images"][1].update(file_name="gone.jpg"),
            "gone.jpg: the file of image id 15 is missing",
        ),
        (lambda r: r["images"][1].update(width=61), "image id 15 is 60×40, and .* says 61×40"),
    ],
)
def test_bad_annotations_are_named(data, change, message):
    folder, file = data
    with pytest.raises(DataError, match=message):
        list_coco(folder, broken(file, change))


def test_masks_are_scored_only_where_they_are_annotated(data):
    folder, file = data
    _, coco = list_coco(folder, broken(file, lambda r: r["annotations"][2].pop("segmentation")))
    with pytest.raises(
        DataError, match=r"annotation 3 of image id 5 has no segmentation, and masks are scored"
    ):
        Detection(coco, _of, "segmentation")
    Detection(coco, _of)  # boxes need none


def test_bad_files_are_named(data, tmp_path):
    folder, file = data
    with pytest.raises(DataError, match="no such file"):
        read_coco(tmp_path / "absent.json")
    (tmp_path / "text.json").write_text("not json")
    with pytest.raises(DataError, match="this is not JSON"):
        read_coco(tmp_path / "text.json")
    (folder / "1.jpg").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"1\.jpg: image id 15 cannot be read \(it is not an image\)"):
        list_coco(folder, file)


def test_a_truncated_image_is_named_when_it_is_read(data):
    folder, file = data
    items, _ = list_coco(folder, file)
    whole = (folder / "2.jpg").read_bytes()
    (folder / "2.jpg").write_bytes(whole[: len(whole) // 2 + 150])
    with pytest.raises(DataError, match=r"2\.jpg: image id 25 cannot be read"):
        read_image(items[2])


def test_class_numbers_without_a_match_are_refused():
    with pytest.raises(DataError, match="knows 3 classes, and the annotations have 2 categories"):
        category_ids(("a", "b", "c"), {1: "cat", 2: "dog"})
    assert category_ids(None, {3: "cat", 90: "dog"}) == {3: 3, 90: 90}


def test_real_annotations(assets):
    items, coco = list_coco(
        assets / "coco" / "val2017", assets / "coco" / "annotations" / "instances_val2017.json"
    )
    assert (len(items), len(coco.categories)) == (80, 80)
    assert max(coco.categories) == 90
    assert any(a["iscrowd"] for a in coco.record["annotations"])
