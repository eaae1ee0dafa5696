"""The command line in this very process, small images, small networks, and one run of each for all tests."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import CALIBRATION, CONVERT, TEST, VIT, Command, Result, stored

from image_folders import annotated, noise, vit_folder
from language_folders import llama, text
from onespike.cli import main


@pytest.fixture
def cli(monkeypatch, capsys) -> Command:
    """Runs `onespike …` as its script does and returns exit code, standard output and standard error.

    The first argument may hold several words.
    """

    def run(first: object, *words: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["onespike", *shlex.split(str(first)), *map(str, words)])
        capsys.readouterr()
        handler = signal.getsignal(signal.SIGINT)
        try:
            with pytest.raises(SystemExit) as exit_:
                main()
        finally:
            signal.signal(signal.SIGINT, handler)  # the command is over, the tests are not
        captured = capsys.readouterr()
        return Result(int(exit_.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def figures(cli, tmp_path) -> Callable[..., tuple[Result, Any]]:
    """Runs a command that ends well, and returns its result and what it wrote with `--json`."""

    def run(*words: object) -> tuple[Result, Any]:
        file = tmp_path / "figures.json"
        return cli(*words, "--json", file).good(), stored(file)

    return run


@pytest.fixture
def refused(cli, request, tmp_path) -> Callable[[str, str], None]:
    """Asserts that a command is refused with this message, says nothing else and leaves nothing.

    Names in braces are fixtures. Words that begin with an option follow `convert`; … in the message is any text.
    """

    class Places(dict):
        def __missing__(self, name: str) -> object:
            return request.getfixturevalue(name)

    def run(words: str, message: str) -> None:
        places = Places(VIT=VIT, TEST=TEST, CALIBRATION=CALIBRATION)
        if words.startswith("--"):
            words = f"{CONVERT} --weights random --limit 4 --out {tmp_path}/new/run {words}"
        words, message = words.format_map(places), message.format_map(places)
        before = sorted(tmp_path.rglob("*"))
        result = cli(words)
        pattern = re.escape(message).replace("…", ".*")
        assert re.fullmatch(pattern, result.message()), result.message()
        assert all(line.startswith(("note: ", "blocks ")) for line in result.out.splitlines()), result.out
        assert sorted(tmp_path.rglob("*")) == before

    return run


@pytest.fixture(autouse=True)
def _brief(monkeypatch):
    """Pages without other λ, and a doctor who tries little."""
    monkeypatch.setattr("onespike.reports.record.DRAWN_SCALES", ())
    monkeypatch.setattr("onespike.reports.record.EXAMPLES", 1)
    monkeypatch.setattr("onespike.diagnosis.measurement.PROBED_SCALES", (0.25,))
    monkeypatch.setattr("onespike.diagnosis.measurement.WORST_KINDS", 0)
    monkeypatch.setattr("onespike.diagnosis.measurement.PASSES", ())
    monkeypatch.setattr("onespike.diagnosis.measurement.VARIANTS", {})


@pytest.fixture(scope="session")
def images(tmp_path_factory) -> Path:
    """Ten images of noise in five numbered classes."""
    folder = tmp_path_factory.mktemp("images")
    for index in range(10):
        noise(folder / str(index // 2) / f"{index}.png", index)
    return folder


@pytest.fixture(scope="session")
def vit_weights(tmp_path_factory) -> Path:
    """A checkpoint of the bundled architecture, untrained."""
    from onespike.adapters.bundled import NETWORKS

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "vit.pth"
    torch.save(NETWORKS["cifar10-vit"]().state_dict(), path)
    return path


@pytest.fixture(scope="session")
def transformers_folder(tmp_path_factory) -> Path:
    """Its configuration asks for half precision."""
    path = tmp_path_factory.mktemp("transformers")
    return vit_folder(path, num_labels=5, initializer_range=0.5, dtype="float16")


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def coco(tmp_path_factory) -> Path:
    """Four images of noise with two objects each, beside instances.json; category ids have gaps."""
    root = tmp_path_factory.mktemp("coco")
    annotated(root / "images", root / "instances.json", 4, {2: "cat", 40: "dog"}, (2, 40))
    return root


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory) -> Path:
    return llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def story(tmp_path_factory) -> Path:
    return text(tmp_path_factory.mktemp("text") / "story.txt", 0, 127)


@pytest.fixture(scope="session")
def converted(tmp_path_factory) -> Callable[..., Path]:
    """Converts a network on inputs, by the paper's recipe with changes, and returns the run."""
    from onespike import runs
    from onespike.adapters import load_model
    from onespike.recipe import preset

    def convert(model, data, count, *, length=None, changes=None, **source) -> Path:
        loaded = load_model(model, **source)
        loaded = loaded if length is None else loaded.with_length(length)
        items = runs.choose(str(data), count, loaded.task)
        folder = tmp_path_factory.mktemp("runs") / "run"
        recipe = preset("sformer", **changes or {})
        runs.save(folder, runs.convert_network(loaded, items, recipe, batch_size=4))
        return folder

    return convert


@pytest.fixture(scope="session")
def vit_run(converted, vit_weights) -> Path:
    """A run of the bundled architecture. Only to be read, as those below: who writes takes `run`."""
    return converted(VIT, CALIBRATION, 4, weights=vit_weights)


@pytest.fixture(scope="session")
def small_run(converted, transformers_folder, images) -> Path:
    """A run of the tiny transformers ViT, for what compilers do with it."""
    return converted(f"transformers:{transformers_folder}", images, 4, pretrained=True)


@pytest.fixture(scope="session")
def detector_run(converted, detector, coco) -> Path:
    return converted(f"transformers:{detector}", coco / "images", None, pretrained=True)


@pytest.fixture(scope="session")
def text_run(converted, llama_folder, story) -> Path:
    return converted(f"transformers:{llama_folder}", story, None, length=16, pretrained=True)


@pytest.fixture
def run(vit_run, tmp_path) -> Path:
    """A copy of `vit_run`, for tests that change it."""
    return shutil.copytree(vit_run, tmp_path / "run")
