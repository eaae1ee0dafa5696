"""`python:FILE.py:FACTORY`: a network of the user's own in every command, and no file that runs without being named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CALIBRATION, TEST, reseal, stored

from onespike.neurons import NEURONS

NETWORK = """
from pathlib import Path

import torch
from torch import nn

from helper import side
from onespike.adapters.bundled import CIFAR10_CLASSES
from onespike.neurons import NEURONS

with open(Path(__file__).with_name("ran"), "a") as marks:
    marks.write("x")


class Own(NEURONS["sfn"]):
    name = "own-neuron"


NEURONS["own-neuron"] = Own


def transform(image):
    assert image.size == (side, side), image.size  # as a network of one size may
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(side, side, 3).movedim(2, 0) / 255


def make():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(392, 10)
    )
    model.transform, model.class_names = transform, CIFAR10_CLASSES
    return model


def blind():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))


def number():
    return 7


def broken():
    raise ValueError("no weights")
"""
FEW = ("--data", TEST, "--limit", 6)


@pytest.fixture(autouse=True, scope="module")
def registries() -> Iterator[None]:
    """What the user's file registers, once in a process, is gone after the last test."""
    before = dict(NEURONS)
    yield
    NEURONS.clear()
    NEURONS.update(before)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "helper.py").write_text("side = 32\n")
    (folder / "own_network.py").write_text(NETWORK)
    return folder / "own_network.py"


@pytest.fixture(scope="module")
def model(file) -> str:
    return f"python:{file}:make"


@pytest.fixture
def run(cli, model, tmp_path) -> Path:
    words = ("convert", model, "--calibrate", CALIBRATION, "--limit", 8, "--preset", "sformer")
    done = cli(*words, "--out", tmp_path / "run").good()
    assert done.err.splitlines()[-1].endswith(f"--model {model}")
    return tmp_path / "run"


def test_every_command_takes_it(cli, run, model, tmp_path, monkeypatch):
    monkeypatch.setattr("onespike.diagnosis.measurement.PROBED_SCALES", (0.25,))
    monkeypatch.setattr("onespike.diagnosis.measurement.PASSES", ("nearest",))
    assert stored(run / "run.json")["network"]["spec"] == model
    export = tmp_path / "network.pt2"
    for words in (
        ("evaluate", run, *FEW),
        ("report", run, *FEW),
        ("doctor", run, *FEW, "--images", 4),
        ("search", run, *FEW, "--trials", 2, "--objective", "kl"),
        ("export", run, "--format", "pt2", "--out", export, "--limit", 2),
        ("inspect", run),
        ("report", run, run, *FEW, "--out", tmp_path / "both"),
    ):
        done = cli(*words, "--model", model)
        assert done.code == 0, (words, done.err)
        assert model in done.out or words[0] in ("report", "export", "search")
    assert export.is_file()
    cli("run", model, *FEW, "--preset", "sformer", "--scale", 0.3, "--out", tmp_path / "whole").good()


def test_a_run_executes_no_file_that_was_not_named(cli, run, file, tmp_path):
    """Whatever it says: the code in it is that of a stranger until the user names it."""
    from onespike.adapters.python import _run

    moved = shutil.copytree(file.parent, tmp_path / "moved")
    record = run / "run.json"
    record.write_text(record.read_text().replace(str(file), str(moved / file.name)))
    _run.cache_clear()
    ran = (file.with_name("ran").read_text(), (moved / "ran").read_text())
    for words in (("evaluate", run, *FEW), ("inspect", run), ("serve", run, "--address", 0)):
        assert cli(*words).code == 2
    reseal(record)
    message = cli("evaluate", run, *FEW).message()
    assert message.endswith("or --model python:FILE.py:FACTORY, which runs that file.")
    assert (file.with_name("ran").read_text(), (moved / "ran").read_text()) == ran
    cli("evaluate", run, *FEW, "--model", f"python:{file}:make").good()
    assert (moved / "ran").read_text() == ran[1]


def test_a_neuron_of_the_file_is_known_in_time(cli, model, tmp_path):
    words = ("convert", model, "--calibrate", CALIBRATION, "--limit", 8, "--preset", "sformer")
    cli(*words, "--set", "neuron=own-neuron", "--out", tmp_path / "run").good()
    cli("evaluate", tmp_path / "run", *FEW, "--model", model).good()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{file}:absent", "unknown function in .* 'absent'"),
        ("{file}:number", "it returns int. Return an nn.Module"),
        ("{file}:broken", r"own_network.py: it fails at line \d+ \(ValueError: no weights\). Correct it."),
        ("{file}:blind", "does not say how it reads an image. Set model.transform"),
        ("net", "Write python:FILE.py:FACTORY"),
        ("{file}x.py:make", "no such file"),
        (
            "{file.parent}/wrong.py:make",
            r"it fails at line 1 \(ModuleNotFoundError: No module named 'no_such",
        ),
    ],
)
def test_what_cannot_be_run(cli, file, tmp_path, spec, message):
    file.with_name("wrong.py").write_text("import no_such_package\n")
    words = ("convert", f"python:{spec.format(file=file)}", "--calibrate", CALIBRATION, "--limit", 2)
    assert re.search(message, cli(*words, "--out", tmp_path / "run").message())
