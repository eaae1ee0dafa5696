"""The command line in this very process, small images, and small networks."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path

import pytest
import torch
from command_line import CALIBRATION, VIT, Command, Result, noise

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
    """A tiny transformers ViT as `save_pretrained` writes it; its configuration asks for half precision."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("transformers")
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32,
        patch_size=16, num_labels=5, initializer_range=0.5, dtype="float16",
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(path)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def vit_run(tmp_path_factory, vit_weights) -> Path:
    """A run of the bundled architecture. Only to be read: tests that damage one copy it first."""
    from onespike import runs
    from onespike.adapters import load_model
    from onespike.recipe import Recipe

    folder = tmp_path_factory.mktemp("runs") / "vit"
    pair = runs.convert_network(load_model(VIT, weights=vit_weights), runs.choose(CALIBRATION, 4), Recipe())
    runs.save(folder, pair)
    return folder


@pytest.fixture(scope="session")
def small_run(tmp_path_factory, transformers_folder, images) -> Path:
    """A run of the tiny transformers ViT, for what compilers do with it. Only to be read."""
    from onespike import runs
    from onespike.adapters import load_model
    from onespike.recipe import Recipe

    folder = tmp_path_factory.mktemp("runs") / "small"
    loaded = load_model(f"transformers:{transformers_folder}", pretrained=True)
    runs.save(folder, runs.convert_network(loaded, runs.choose(str(images), 4), Recipe()))
    return folder
