"""`onespike run`: the whole way in one command, and on from where it was stopped; `onespike demo` on few images."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from command_line import CALIBRATION, TEST, VIT, reseal, stored

from onespike import adapters, runs
from onespike.adapters import load_model
from onespike.cli.convert import searches
from onespike.recipe import preset
from onespike.reports import record as report_record
from onespike.runs import storage
from onespike.runs.searching import searched

SFORMER = ("--calibrate", CALIBRATION, "--preset", "sformer", "--scale", 0.3)
SMALL = ("run", VIT, "--data", TEST, "--limit", 6, "--images", 4)


def stages(result) -> list[str]:
    """The stages that it names before it runs them."""
    return re.findall(r"^\d/\d: ([\w ]+?)(?: \(done before\))?$", result.err, re.MULTILINE)


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_from_a_network_to_its_report(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = cli(*SMALL, "--calibrate", CALIBRATION, "--passes", "nearest,center", "--budget", "0.3").good()
    assert stages(result) == ["convert", "report"]
    assert "done " in result.out and "top-1 accuracy, %: " in result.out
    assert "difference     " in result.out
    assert result.err.count("next: ") == 1
    record = stored(tmp_path / "cifar10-vit-spiking/report/report.json")
    assert record["calibration"]["images"] == 4 and record["data"]["images"] == 6
    assert record["recipe"]["passes"] == ["nearest", "center"]
    again = cli(*SMALL, "--calibrate", CALIBRATION, "--passes", "nearest,center", "--budget", "0.3")
    assert again.code == 0 and again.err.count("(done before)") == 2
    assert "top-1 accuracy, %: " in again.out


def test_it_searches_where_nothing_else_finds_the_steps(cli, tmp_path, images, monkeypatch):
    """All images come from one folder: a part calibrates, another part is searched on, the rest is measured on."""
    monkeypatch.setattr("onespike.cli.convert.TRIALS", 2)
    run = tmp_path / "run"
    result = cli("run", VIT, "--data", images, "--out", run, "--preset", "sformer").good()
    assert stages(result) == ["convert", "search", "report"]
    search = searched(run)
    assert len(search["trials"]) == 2
    assert storage.load(run).recipe.scale == search["best"]["scale"]
    record = stored(run / "report/report.json")
    assert record["calibration"]["images"] == 2  # a quarter of ten
    assert record["data"] == {**record["data"], "images": 6, "overlap": 0}


def test_when_it_searches():
    assert searches(preset("sformer"))
    assert not any(map(searches, (preset("sformer", scale=0.3), preset("best"), preset("if"))))


@pytest.mark.parametrize("stopped", ["before", "after"])
def test_it_goes_on_where_it_was_stopped(cli, tmp_path, monkeypatch, stopped):
    """Ctrl-C in the second command; and right after the first, before that is written down."""
    monkeypatch.chdir(tmp_path)
    words = (*SMALL, *SFORMER, "--out", "run")
    with monkeypatch.context() as patched:
        patched.setattr(report_record, "gather", interrupted)
        result = cli(*words)
        assert result.code == 2
        assert result.err.splitlines()[-1].endswith("Run the same command again to go on.")
    before = (tmp_path / "run/thresholds.safetensors").stat().st_mtime_ns
    journal = tmp_path / ".run.plan.json"
    assert stored(journal)["done"] == ["convert"]
    if stopped == "after":
        reseal(journal, done=[])
    other = cli(*words, "--set", "percentile=2")
    assert "run: a run with other options is there." in other.message()
    result = cli(*words).good()
    assert result.err.count("(done before)") == 1
    assert (tmp_path / "run/thresholds.safetensors").stat().st_mtime_ns == before
    plan = tmp_path / "run/plan.json"
    assert not journal.exists()
    # sealed again without its first stage: the folder itself says that it is done
    reseal(plan, done=stored(plan)["done"][1:])
    assert cli(*words).err.count("(done before)") == 2


def test_what_was_refused_leaves_no_plan_behind(cli, tmp_path, monkeypatch):
    """Else the same command with its mistake mended would meet a run with other options."""
    monkeypatch.chdir(tmp_path)
    assert cli(*SMALL, "--out", "run", "--batch-size", 0).code == 2
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(report_record, "gather", interrupted)
    words = (*SMALL, *SFORMER, "--out", "run")
    for _ in range(2):  # the second time the folder is gone, and its plan is not
        assert "done before" not in cli(*words).err
        assert (tmp_path / ".run.plan.json").exists() and (tmp_path / "run/run.json").exists()
        shutil.rmtree(tmp_path / "run")


def test_damage_is_named(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".run.plan.json").write_text('{"request": {}, "done": []}')
    message = cli(*SMALL, "--out", "run").message()
    assert message.startswith(".run.plan.json: the file is damaged") and "Remove it and run" in message


def test_held_out_images_of_an_evaluation(cli, small_run, images):
    done = cli("evaluate", small_run, "--data", images, "--held-out").good()
    assert ", 6 images" in done.out and "note: " not in done.out
    assert "note: 4 of these images" in cli("evaluate", small_run, "--data", images).out


def test_it_exports_if_asked(cli, tmp_path, monkeypatch):
    """The command itself has tests of its own."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    written = []
    monkeypatch.setattr("onespike.runs.forms.export", lambda *words, **_: written.append(words[1:3]))
    monkeypatch.setattr("onespike.cli.show.export", lambda *_: None)
    formats = ("--format", "onnx", "--format", "pt2", "--out", "run")
    result = cli(*SMALL, *SFORMER, *formats).good()
    assert stages(result) == ["convert", "report", "export onnx", "export pt2"]
    assert written == [(name, Path(f"run/export/network.{name}")) for name in ("onnx", "pt2")]


def test_the_network_is_loaded_once_and_images_are_decoded_once(cli, tmp_path, images, monkeypatch):
    from onespike.adapters import bundled
    from onespike.tasks import Classification, read_image

    loads, decoded = [], []
    load = bundled.load
    monkeypatch.setattr(bundled, "load", lambda *a: loads.append(a) or load(*a))

    def decode(self, item):
        decoded.append(item.name)
        return read_image(item)

    monkeypatch.setattr(Classification, "load", decode)
    words = ("--calibrate", images, "--passes", "nearest,allocate", "--budget", 0.2)
    cli(*SMALL, "--images", 10, *words, "--out", tmp_path / "run").good()
    assert len(loads) == 1
    calibration = [name for name in decoded if name.endswith(".png")]
    assert len(calibration) == len(set(calibration)) == 10


@pytest.fixture
def few(monkeypatch):
    choose, labeled = runs.choose, runs.choose_labeled
    monkeypatch.setattr(runs, "choose", lambda data, count: choose(data, 6))
    monkeypatch.setattr(runs, "choose_labeled", lambda loaded, data: labeled(loaded, data, None, 6))
    monkeypatch.setattr(report_record, "DRAWN_SCALES", (1.0, 0.25))


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
