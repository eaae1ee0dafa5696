"""Runs that are damaged, edited or none: one sentence, exit code 2."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from command_line import TEST, noise
from torch import nn

import onespike
from onespike.runtime.atomic import sha256
from onespike.runtime.validated import sealed


def damage_thresholds(run):
    file = run / "thresholds.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def damage_weights(run):
    file = run / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)


def replace_in_record(old, new):
    def edit(run):
        text = (run / "run.json").read_text()
        assert old in text
        (run / "run.json").write_text(text.replace(old, new))

    return edit


DIFFERS = "is not the file that was saved (its SHA-256 differs)"


EDITED = "the file is damaged (it is not what was saved: its SHA-256 differs)"


DAMAGES = {
    "cut thresholds": (damage_thresholds, f"thresholds.safetensors {DIFFERS}"),
    "a bit in the weights": (damage_weights, f"weights.safetensors {DIFFERS}"),
    "no weights": (lambda run: (run / "weights.safetensors").unlink(), "weights.safetensors is missing"),
    "an edited number": (replace_in_record('"scale": 0.25', '"scale": 0.5'), EDITED),
    "a lost key": (replace_in_record('"recipe"', '"recipes"'), EDITED),
    "cut record": (replace_in_record("}\n", "\n"), "the file is damaged (invalid JSON: "),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_run(cli, tmp_path, vit_run, kind):
    run = tmp_path / "run"
    shutil.copytree(vit_run, run)
    damage, found = DAMAGES[kind]
    damage(run)
    for command in (("inspect", run), ("evaluate", run, "--data", TEST), ("doctor", run, "--data", TEST)):
        message = cli(*command).message()
        place = f"{run / 'run.json'}: " if found.startswith("the file") else f"{run}: the run is damaged: "
        assert message.startswith(place + found)
        assert message.endswith(". Convert the network again.")


def test_a_run_that_is_none(cli, tmp_path, vit_run):
    missing = tmp_path / "run"
    for command in (("inspect", missing), ("evaluate", missing, "--data", TEST)):
        assert cli(*command).message() == (
            f"{missing}: no run here (run.json is missing). Make one with: onespike convert … --out {missing}"
        )
    shutil.copytree(vit_run, missing)
    replace_in_record('"version": 1,\n "network"', '"version": 2,\n "network"')(missing)
    assert cli("inspect", missing).message() == (
        f"{missing}: the run has version 2, and this onespike reads 1. Convert the network again."
    )
    (missing / "run.json").write_text("[]")
    assert cli("inspect", missing).message() == (
        f"{missing / 'run.json'}: the file is damaged (input should be an object). Convert the network again."
    )


def test_a_run_that_python_wrote(cli, tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    folder = onespike.spike(model, [torch.randn(8, 4)], "sformer").save_pretrained(tmp_path / "kept")
    assert cli("evaluate", folder, "--data", TEST).message() == (
        f"{folder}: this run holds the weights of a torch.nn.modules.container.Sequential without its code. Give one: "
        "onespike.from_pretrained(FOLDER, model), or --model python:FILE.py:FACTORY, which runs that file."
    )


def test_a_preprocessor_that_makes_no_image(cli, tmp_path):
    """A size of 0, in a run that is sealed again: the first image shows it."""
    transformers = pytest.importorskip("transformers")
    images, net, run = (tmp_path / name for name in ("images", "net", "run"))
    noise(images / "0" / "a.png", 0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=32,
        patch_size=16,
    )
    transformers.ViTForImageClassification(config).save_pretrained(net)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(net)
    words = ("--weights", "pretrained", "--calibrate", images, "--preset", "sformer", "--out", run)
    assert cli("convert", f"transformers:{net}", *words).code == 0
    file = run / "network" / "preprocessor_config.json"
    file.write_text(file.read_text().replace('"height": 32', '"height": 0'))
    record = json.loads((run / "run.json").read_text())
    record["files"]["network/preprocessor_config.json"] = sha256(file)
    (run / "run.json").write_text(sealed({key: value for key, value in record.items() if key != "sha256"}))
    message = cli("evaluate", run, "--data", images).message()
    assert message.startswith(
        f"transformers:{run / 'network'}: the image processor: what it says does not fit"
    )
    assert message.endswith("). Mend its preprocessor_config.json.")
