"""COCO data and AP: equal to pycocotools on its own way, and bad data named by file and id."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
import torch
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from onespike.adapters.detection import run_lengths
from onespike.errors import DataError
from onespike.tasks import AveragePrecision, category_ids, list_coco, read_coco
from onespike.tasks.coco_schema import decompressed
from onespike.tasks.precision import FIGURES, evaluated, figures_of, resampled

MODES = ("RGB", "L", "CMYK")


def mask(box: list[float]) -> dict:
    x, y, w, h = map(int, box)
    pixels = torch.zeros(40, 60)
    pixels[y : y + h, x : x + w] = 1
    return run_lengths(pixels)


def annotation(number: int, image: int, category: int, box: list[float], crowd: int = 0) -> dict:
    x, y, w, h = box
    shape = mask(box) if crowd else [[x, y, x + w, y, x + w, y + h, x, y + h]]
    return {
        "id": number, "image_id": image, "category_id": category, "bbox": box, "area": w * h, "iscrowd": crowd,
        "segmentation": shape,
    }  # fmt: skip


@pytest.fixture
def data(tmp_path) -> tuple[Path, Path]:
    """Three images (RGB, gray, CMYK), categories with gaps, small and large objects, and a crowd."""
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


@pytest.fixture
def coco(data):
    return read_coco(data[1])


def guesses(record: dict, seed: int) -> list[dict]:
    """The truth, shaken, in part under another class, in part missing, with boxes inside the crowd."""
    draw, results = random.Random(seed), []
    for truth in record["annotations"]:
        for _ in range(2):
            x, y, w, h = (v + draw.randint(-2, 2) for v in truth["bbox"])
            box = [max(x, 0), max(y, 0), max(w, 3), max(h, 3)]
            category = truth["category_id"] if draw.random() < 0.8 else draw.choice([3, 7, 90])
            results.append({
                "image_id": truth["image_id"], "category_id": category, "bbox": box, "score": draw.random(),
                "segmentation": mask(box),
            })  # fmt: skip
    return results


def perfect(coco) -> list[dict]:
    return [{**a, "score": 1.0} for a in coco.record["annotations"] if not a["iscrowd"]]


def _of(results, images):
    numbers = {image["id"] for image in images}
    return [r for r in results if r["image_id"] in numbers]


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


def test_figures_are_those_of_pycocotools(data, coco, tmp_path):
    results = {"ann": guesses(coco.record, 1), "snn": guesses(coco.record, 2)}
    metric = AveragePrecision(coco, _of, masks=True)
    for ids in ([5, 15], [25]):
        metric.update(results["ann"], results["snn"], torch.tensor(ids))
    scores = metric.compute()
    base = ("image_id", "category_id", "score")
    for network in ("ann", "snn"):
        for kind, shape in (("bbox", "bbox"), ("segm", "segmentation")):
            expected = reference(data[1], results[network], kind, (*base, shape), tmp_path)
            for name, value in zip(FIGURES, expected, strict=True):
                actual = scores[network][kind][name]
                assert (actual is None) if value < 0 else actual == pytest.approx(100 * value, abs=1e-9), name
    assert 5 < scores["ann"]["bbox"]["AP"] < 95
    assert scores["ann"]["bbox"]["AP"] != scores["snn"]["bbox"]["AP"]
    assert set(scores["classes"]) == {"cat", "dog"}  # no cup is annotated
    rows = [row["ann"]["bbox"] for row in scores["classes"].values()]
    assert sum(rows) / len(rows) == pytest.approx(scores["ann"]["bbox"]["AP"])
    json.dumps(scores)


def test_the_error_of_a_difference_is_paired(coco):
    alike, other = guesses(coco.record, 1), guesses(coco.record, 2)

    def computed(ann, snn, ids):
        metric = AveragePrecision(coco, _of)
        metric.update(ann, snn, torch.tensor(ids))
        return metric.compute()

    same = computed(alike, alike, [5, 15, 25])
    assert (same["difference"], same["standard_error"]) == (0, 0)
    unlike = computed(alike, other, [5, 15, 25])
    assert unlike["difference"] == pytest.approx(unlike["snn"]["bbox"]["AP"] - unlike["ann"]["bbox"]["AP"])
    each = [computed(alike, other, [i]) for i in (5, 15, 25)]
    differences = [row["difference"] for row in each]
    assert 0 < unlike["standard_error"] < max(differences) - min(differences)
    assert each[0]["standard_error"] is None


def test_images_drawn_once_each_give_ap_itself(coco):
    evaluator = evaluated(coco, guesses(coco.record, 1), "bbox", [5, 15, 25])
    expected = figures_of(evaluator)[0]["AP"]
    # some draw is all three
    assert any(abs(value - expected) < 1e-9 for (value,) in resampled([evaluator], 60))


def test_only_the_images_that_were_run_are_scored(coco):
    metric = AveragePrecision(coco, _of)
    metric.update(perfect(coco), [], torch.tensor([5]))
    scores = metric.compute()
    assert scores["ann"]["bbox"]["AP"] == pytest.approx(100)
    assert scores["snn"]["bbox"]["AP"] == 0
    assert scores["objects"] == 5


def test_results_are_checked(coco):
    good = {"image_id": 5, "category_id": 3, "bbox": [0, 0, 5, 5], "score": 0.5}
    for change, message in (
        ({"category_id": 4}, "names category 4 in image 5"),
        ({"image_id": 15}, "names category 3 in image 15"),
        ({"score": float("nan")}, "is not finite"),
    ):
        metric = AveragePrecision(coco, lambda output, images: output)
        with pytest.raises(DataError, match=message):
            metric.update([{**good, **change}], [], torch.tensor([5]))
    metric = AveragePrecision(coco, lambda output, images: output, categories={1: 3})
    metric.update([{**good, "category_id": 1}, {**good, "category_id": 8}], [], torch.tensor([5]))
    assert [r["category_id"] for r in metric.predictions["ann"]] == [3]


def changed(file: Path, key: str, place: int | None, values) -> Path:
    """The file with new values of one entry, or with another entry or list; `...` removes what stood there."""
    record = json.loads(file.read_text())
    target, name = (record, key) if place is None else (record[key], place)
    if isinstance(values, dict):
        values = {k: v for k, v in (target[name] | values).items() if v is not ...}
    target[name] = values
    file.write_text(json.dumps({k: v for k, v in record.items() if v is not ...}))
    return file


DAMAGE = [
    ("annotations", None, [], "at annotations: list should have at least 1 item"),
    ("categories", None, ..., "at categories: field required"),
    ("annotations", 2, {"image_id": 77}, "annotation 3 has the image_id 77, which the file"),
    ("annotations", 2, {"category_id": 4}, "annotation 3 has the category_id 4, which the file"),
    ("images", 1, {"id": 5}, "image 5 has the id 5, which another one has too"),
    ("annotations", 2, {"id": 1}, "annotation 1 has the id 1, which another one has too"),
    ("categories", 1, {"id": 3}, "category 3 has the id 3, which another one has too"),
    ("categories", 1, {"name": "cat"}, "category 90 has the name 'cat', which another one has too"),
    ("annotations", 2, {"id": 2**63}, "at annotations.2.id: input should be less than"),
    ("images", 1, {"width": ...}, "at images.1.width: field required"),
    ("images", 1, {"file_name": "a\0"}, "at images.1.file_name: string should match pattern"),
    ("annotations", 2, 5, "at annotations.2: input should be"),
    ("annotations", 2, {"bbox": [1, 2, -3, 4]}, "annotation 3 has the bbox .* no negative side"),
    ("annotations", 2, {"bbox": [1, 2, 1e9, 4]}, "the bbox .* far outside the image of 60×40"),
    ("annotations", 2, {"bbox": [math.nan] * 4}, "at annotations.2.bbox.0: input should be a finite number"),
    ("annotations", 2, {"area": -1}, "at annotations.2.area: input should be greater than or equal to 0"),
    ("images", 1, {"file_name": "gone.jpg"}, "gone.jpg: the file of image id 15 is missing"),
    ("images", 1, {"width": 61}, "image id 15 is 60×40, and .* says 61×40"),
]
"""The list, the place in it, new values (`...` removes one), and the message."""

PIXELS = 40 * 60
SHAPES = [
    ([[1, 2, 3, 4, 5]], "a polygon of 5 numbers, not x and y of three points"),
    ([[1, 2, 3, 4, 5, 6], []], "a polygon of 0 numbers"),
    ([[0, 0, 1e9, 0, 1e9, 1e9]], "far outside the image of 60×40"),
    ([[0, 0, math.inf, 0, 5, 5]], "0.2: input should be a finite number"),
    ([[0, 0, 59, 39] * 200_000], "a polygon whose outline is longer than 10000000 pixels"),
    ({"size": [40, 60], "counts": [PIXELS - 1]}, "do not add up to 60·40 pixels"),
    ({"size": [40, 60], "counts": [PIXELS, 1]}, "do not add up to 60·40 pixels"),
    ({"size": [40, 60], "counts": [-1, PIXELS + 1]}, "damaged or do not add up"),
    ({"size": [60, 40], "counts": [PIXELS]}, r"a size of \[60, 40\], and the image has \[40, 60\]"),
    ({"size": [40, 60], "counts": "52203"}, "do not add up to 60·40 pixels"),
    ({"size": [40, 60], "counts": "5é"}, "damaged or"),
    ({"size": [40, 60], "counts": "P"}, "damaged or"),
    ({"size": [40, 60], "counts": "o" * 30}, "damaged or"),
    ({"size": [40, 60]}, "counts: field required"),
    (5, "input should be a"),
]
"""Segmentations, which C code must not see, and the message."""
DAMAGE += [
    ("annotations", 2, {"segmentation": shape}, rf"annotation(s.2.| 3 has the )segmentation.*{message}")
    for shape, message in SHAPES
]


@pytest.mark.parametrize(("key", "place", "values", "message"), DAMAGE, ids=[row[3] for row in DAMAGE])
def test_bad_annotations_are_named(data, key, place, values, message):
    folder, file = data
    with pytest.raises(DataError, match=message) as error:
        list_coco(folder, changed(file, key, place, values))
    assert str(folder.parent) in str(error.value) and len(str(error.value)) < 400


def test_compressed_run_lengths_are_those_of_pycocotools():
    generator = torch.Generator().manual_seed(0)
    for density in (0.0, 0.02, 0.5, 1.0):
        mask = (torch.rand(37, 53, generator=generator) < density).to(torch.uint8)
        counts, value, expected = decompressed(run_lengths(mask)["counts"]), 0, []
        for count in counts:
            expected += [value] * count
            value = 1 - value
        assert expected == mask.t().flatten().tolist()


def test_an_annotation_with_the_id_0_counts_like_any_other(data):
    figures = []
    for number in (1, 0):
        coco = read_coco(changed(data[1], "annotations", 0, {"id": number}))
        figures.append(figures_of(evaluated(coco, perfect(coco), "bbox", [5, 15, 25])))
    assert figures[0] == figures[1]


@pytest.mark.parametrize("empty", [None, [], [[]], ...])
def test_masks_are_scored_only_where_they_are_annotated(data, empty):
    coco = read_coco(changed(data[1], "annotations", 2, {"segmentation": empty}))
    AveragePrecision(coco, _of)  # boxes need none
    message = "annotation 3 of image id 5 has no segmentation, and masks are scored"
    with pytest.raises(DataError, match=message):
        AveragePrecision(coco, _of, masks=True)


def test_bad_files_are_named(data, tmp_path):
    folder, file = data
    with pytest.raises(DataError, match="no such file"):
        read_coco(tmp_path / "absent.json")
    (tmp_path / "text.json").write_text("not json")
    with pytest.raises(DataError, match="invalid JSON"):
        read_coco(tmp_path / "text.json")
    (folder / "1.jpg").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"1\.jpg: image id 15 cannot be read \(it is no BMP, GIF,"):
        list_coco(folder, file)


def test_class_numbers_without_a_match_are_refused():
    with pytest.raises(DataError, match="knows 3 classes, and the annotations have 2 categories"):
        category_ids(("a", "b", "c"), {1: "cat", 2: "dog"})
    assert category_ids(None, {3: "cat", 90: "dog"}) == {3: 3, 90: 90}


def test_real_annotations(assets):
    folder = assets / "coco"
    items, coco = list_coco(folder / "val2017", folder / "annotations" / "instances_val2017.json")
    assert (len(items), len(coco.categories)) == (80, 80)
    assert max(coco.categories) == 90
    assert any(a["iscrowd"] for a in coco.record["annotations"])
