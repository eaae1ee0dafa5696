"""The studies on small networks: every one runs, is written whole, and measures nothing twice."""

from __future__ import annotations

import csv
import json
import statistics

import pytest
import torch
from torch import nn

from image_folders import larger, small_vit
from onespike import preset
from onespike.adapters import LoadedModel, Reading, load_model
from onespike.errors import DataError, UsageError
from onespike.runs import draws
from onespike.runtime.validated import sealed
from onespike.scale_search import search
from onespike.studies.reproduce import STUDIES, Bench, run_study
from onespike.studies.reproduce.bench import CACHE, split
from onespike.studies.reproduce.study import with_data
from onespike.tasks import Classification, limit, list_coco, list_images


def load(network: str) -> LoadedModel:
    from torchvision.transforms.functional import pil_to_tensor

    if "vit" in network:
        model = small_vit()
    else:
        torch.manual_seed(0)
        first = nn.Conv2d(3, 8, 3, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(inplace=True)
        model = larger(nn.Sequential(*first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)))
    reading = Reading(lambda image: pil_to_tensor(image).float() / 64 - 2, "")
    task = Classification(list_images("bundled:cifar10-test").class_names)
    return LoadedModel(model, f"bundled:{network}", reading, task, "random")


def bench(folder, network="cifar10-vit") -> Bench:
    """A small network with random weights; the bundled detector, since AP would be 0 for every λ without its own."""
    if network == "scenes":
        test, calibration = (list_coco(f"bundled:scenes-{name}")[0] for name in ("test", "calibration"))
        return Bench(
            load_model("bundled:scenes"), *split(test, limit(calibration, 12), 6, 4), folder, batch_size=4
        )
    test, calibration = (list_images(f"bundled:cifar10-{name}") for name in ("test", "calibration"))
    return Bench(load(network), *split(test, limit(calibration, 16), 8, 10), folder, batch_size=8)


@pytest.fixture(autouse=True)
def few_trials(monkeypatch):
    """What a sampler learns is not asked here, and would take the longest."""

    def few(objective, *, trials, **options):
        return search(objective, trials=min(trials, 4), sampler="grid", **options)

    monkeypatch.setattr("onespike.studies.reproduce.bench.search", few)


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_every_study_is_written_whole_and_never_measured_twice(name, tmp_path, monkeypatch):
    chosen = STUDIES[name]
    rows, files = run_study(chosen, bench(tmp_path, chosen.network))
    assert rows
    figure = {".pdf", ".png", ".svg"} if chosen.draw else set()
    assert {file.suffix for file in files} == {".csv", ".json", ".tex", *figure}
    assert all(file.stat().st_size > 50 for file in files)
    by_suffix = {file.suffix: file for file in files}
    record = json.loads(by_suffix[".json"].read_text())
    assert record["rows"] == json.loads(json.dumps(rows))
    assert len(list(csv.DictReader(by_suffix[".csv"].read_text().splitlines()))) == len(rows)
    assert (record["title"], record["note"]) == (chosen.title, chosen.note)
    monkeypatch.setattr(Bench, "converted", lambda self, recipe: pytest.fail("measured a second time"))
    again = chosen.measure(bench(tmp_path, chosen.network))
    assert [row | now for row, now in zip(rows, again, strict=True)] == rows


def test_every_row_names_its_images():
    """A number of the paper is of other images than ours, and both stand in one table."""
    rows = [{"network": "a", "score": 80.0, "paper score": 70.6}, {"network": "b", "paper score": 82.4}]
    named = with_data(STUDIES["table-classification"], rows, "cifar10-test")
    assert named[0] == {**rows[0], "data": "cifar10-test", "paper data": "ImageNet-1K"}
    assert named[1] == {**rows[1], "paper data": "ImageNet-1K"}
    assert STUDIES["table-detection"].paper_data == "COCO-2017"


def test_an_interrupted_study_goes_on_where_it_stopped(tmp_path, monkeypatch):
    measured, whole = [], Bench._measure

    def until_third(self, recipe):
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append(recipe)
        return whole(self, recipe)

    with monkeypatch.context() as patch:
        patch.setattr(Bench, "_measure", until_third)
        with pytest.raises(KeyboardInterrupt):
            run_study(STUDIES["table-percentile"], bench(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == [CACHE]
    later = []
    monkeypatch.setattr(Bench, "_measure", lambda self, recipe: later.append(recipe) or whole(self, recipe))
    rows = list(STUDIES["table-percentile"].measure(bench(tmp_path)))
    assert [r.percentile for r in measured + later] == [row["percentile"] for row in rows]


def test_a_folder_of_other_measurements_is_refused(tmp_path):
    from PIL import Image

    def images(color):
        for index in range(5):
            Image.new("RGB", (32, 32), (color, index, 0)).save(tmp_path / f"{index}.png")
        return list_images(tmp_path)

    def measured(items, loaded=None):
        sets = (limit(items, 1), limit(items, 2), items)
        return Bench(loaded or load("cifar10-vit"), *sets, tmp_path / "out", batch_size=8)

    measured(images(1)).once("a", dict)
    assert measured(images(1)).finished == {"a": {}}
    other = load("cifar10-vit")
    with torch.no_grad():
        next(other.model.parameters()).add_(1)
    words = f"{tmp_path / 'out'} holds measurements of another network, of other images or at other prices. "
    # other weights, fewer images, and other images of the same names
    for color, count, loaded in ((1, 5, other), (1, 4, None), (2, 5, None)):
        with pytest.raises(UsageError, match=words):
            measured(limit(images(color), count), loaded)
    for contents in ("{", sealed({"identity": {}, "measured": {"a": 3}})):
        (tmp_path / "out" / CACHE).write_text(contents)
        with pytest.raises(DataError, match=r"the file is damaged \(.*\)\. Remove it to measure again\."):
            measured(images(1))


def test_images_serve_one_purpose_each():
    source = list_images("bundled:cifar10-test")
    calibration, held, test = split(source, None, 20, 100)
    names = [set(items.names) for items in (calibration, held, test)]
    assert [len(n) for n in names] == [20, 20, 100]
    assert not names[0] & names[1] | names[0] & names[2] | names[1] & names[2]
    with pytest.raises(DataError, match=r"41 images are too few .* Give at least 43, or calibrate=DIR\."):
        split(limit(source, 41), None, 21, None)
    same = split(source, limit(source, 40), 20, None)  # --calibrate and --data name one folder
    assert [len(items) for items in same] == [20, 20, len(source) - 40]
    assert not set(same[2].names) & {*same[0].names, *same[1].names}


def test_equal_energy_is_equal(tmp_path):
    made = bench(tmp_path)
    target = made.measure(preset("sformer", scale=0.4))["counts"]
    equal = made.at_energy(preset("sformer", levels="mixed:16+4"), "counts", target)
    assert made.measure(equal)["counts"] == pytest.approx(target, rel=0.1)


def test_scores_have_their_spread_over_calibrations(tmp_path):
    """Each draw is measured once and kept; the table has the mean, and what is beside it."""
    one = bench(tmp_path / "one")
    pool = list_images("bundled:cifar10-calibration")
    first, *others = draws(pool, 8, 3, seed=0, apart=(one.held, one.test))
    many = Bench(one.loaded, first, one.held, one.test, tmp_path, batch_size=8, draws=others)
    recipe = preset("sformer", scale=0.5)
    row = many.measure(recipe)
    each = [
        Bench(one.loaded, items, one.held, one.test, tmp_path / str(k), batch_size=8).measure(recipe)
        for k, items in enumerate((first, *others))
    ]
    scores, kls = ([one[column] for one in each] for column in ("score", "kl"))
    assert row["score"] == pytest.approx(statistics.fmean(scores))
    assert row["sd"] == pytest.approx(statistics.stdev(scores))
    assert (row["lowest"], row["highest"]) == (min(scores), max(scores))
    assert len(set(kls)) == 3 and row["kl"] == pytest.approx(statistics.fmean(kls))
    assert "means over 3 calibrations on 8 images" in many.note and one.note == ""
    assert "sd" not in one.measure(recipe)


def test_draws_differ_by_the_seed_and_share_no_input_while_there_are_enough():
    pool = list_images("bundled:cifar10-calibration")
    apart = limit(pool, 56)
    sets = draws(pool, 50, 6, seed=0, apart=(apart,))
    names = [set(items.names) for items in sets]
    assert all(len(one) == 50 and not one & set(apart.names) for one in names)
    assert len(set.union(*names[:4])) == 200  # of 200 that are left; the fifth begins again
    assert [set(items.names) for items in draws(pool, 50, 6, seed=0, apart=(apart,))] == names
    assert set(draws(pool, 50, 1, seed=1, apart=(apart,))[0].names) not in names
    with pytest.raises(DataError, match="to draw 200 inputs there must be more than the 200 that are left"):
        draws(pool, 200, 2, seed=0, apart=(apart,))
