"""Bad input: exit code 2, one message that ends with the remedy (word by word), nothing written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from command_line import CALIBRATION, TEST, VIT, noise
from PIL import Image

from onespike.adapters.base import OPTIONS
from onespike.cli.commands import as_options
from onespike.neurons import NEURONS
from onespike.presets import PRESETS


@pytest.fixture
def convert(cli, tmp_path):
    """Runs `convert` with some words changed, and asserts that it was refused and left nothing."""

    def run(
        *more: object, model: str = VIT, weights: tuple = ("--weights", "random"), calibrate=CALIBRATION
    ) -> str:
        before = sorted(tmp_path.rglob("*"))
        words = (
            f"convert {model} --preset sformer",
            *weights,
            "--calibrate",
            calibrate,
            "--out",
            tmp_path / "new" / "run",
        )
        result = cli(*words, "--limit", 4, *more)
        assert sorted(tmp_path.rglob("*")) == before
        assert result.out == ""
        return result.message()

    return run


OPTION_VALUES = {
    ("--preset", "sforme"): "unknown preset 'sforme'. Did you mean 'sformer' or 'uniform'? "
    f"Known: {', '.join(sorted(PRESETS))}.",
    (
        "--set",
        "neuron=snf",
    ): f"unknown neuron 'snf'. Did you mean 'sfn'? Known: {', '.join(sorted(NEURONS))}.",
    ("--set", "rounding=up"): "unknown rounding 'up'. Known: nearest, paper, thrifty.",
    ("--set", "domain=al"): "unknown domain 'al'. Did you mean 'all'? Known: all, sided.",
    ("--set", "io=digital"): "unknown io 'digital'. Known: analog, spiking.",
    ("--set", "granularity=layer"): "unknown granularity 'layer'. Known: channel, site.",
    ("--set", "softmax=row"): "unknown softmax threshold 'row'. Known: head, model, site.",
    ("--attention", "flash"): "unknown attention 'flash'. Known: eager, sdpa.",
    ("--set", "levels=mixd:8"): "unknown kind of levels 'mixd'. Did you mean 'mixed'? "
    "Known: bits, density, exponential, linear, mixed.",
    (
        "--set",
        "levels=mixed:x",
    ): "levels 'mixed:x': 'x' is not an integer. Write for example mixed:8, mixed:64+8 or 1,2,4.",
    ("--set", "levels=0"): "levels 'mixed:0' need M ≥ 1 and a tail ≥ 0. The paper uses mixed:8.",
    ("--set", "levels=2,1"): "levels must increase, and '2,1' do not. Write each once, the smallest first.",
    ("--scale", "0"): "scale must be in (0, 1], not 0. The paper uses 0.25 to 0.36.",
    ("--scale", "1.5"): "scale must be in (0, 1], not 1.5. The paper uses 0.25 to 0.36.",
    ("--scale", "nan"): "scale must be in (0, 1], not nan. The paper uses 0.25 to 0.36.",
    (
        "--scale",
        "1e-300",
    ): "scale must be in (0, 1] and not below 1.2e-38, the least that float32 holds in full, "
    "not 1e-300. The paper uses 0.25 to 0.36.",
    (
        "--set",
        "softmax=1e-300",
    ): "a fixed softmax threshold must be from 1.2e-38 to 3.4e+38, as float32 holds it, "
    "not 1e-300. The paper uses 0.0035.",
    ("--set", "percentile=-1"): "percentile must be in [0, 50), not -1. The paper uses 1.",
    ("--set", "percentile=50"): "percentile must be in [0, 50), not 50. The paper uses 1.",
    ("--set", "percentile=nan"): "percentile must be in [0, 50), not nan. The paper uses 1.",
    ("--set", "softmax=0"): "a fixed softmax threshold must be from 1.2e-38 to 3.4e+38, as float32 holds it, "
    "not 0. The paper uses 0.0035.",
    (
        "--set",
        "softmax=nan",
    ): "a fixed softmax threshold must be from 1.2e-38 to 3.4e+38, as float32 holds it, "
    "not nan. The paper uses 0.0035.",
    (
        "--set",
        "softmax=inf",
    ): "a fixed softmax threshold must be from 1.2e-38 to 3.4e+38, as float32 holds it, "
    "not inf. The paper uses 0.0035.",
    ("--limit", "0"): "limit must be at least 1, not 0. Leave it out to use all 256 images.",
    ("--batch-size", "0"): "batch size must be at least 1, not 0. Try 32.",
    ("--set", "exclude=*"): "convert: no site would spike. Widen include, or narrow exclude.",
    (
        "--reference-weights",
    ): "--reference-weights needs a checkpoint to refer to. Give it with --weights FILE.",
}


@pytest.mark.parametrize("words", OPTION_VALUES, ids=" ".join)
def test_option_values(convert, words):
    assert convert(*words) == OPTION_VALUES[words]


@pytest.mark.parametrize("device", ["tpu9", "cuda:99", "meta"])
def test_devices(convert, device):
    message = convert("--device", device)
    assert message.startswith(f"device '{device}' cannot be used here (")
    assert message.endswith("). Try --device cpu.")


MODELS = {
    "timm:vit_tiny_patch16_242": "Did you mean 'vit_tiny_patch16_224'",
    "torchvision:resnet19": "Did you mean 'resnet18'",
}


@pytest.mark.parametrize("model", MODELS)
def test_unknown_models(convert, model):
    library, _, name = model.partition(":")
    message = convert(model=model)
    assert message.startswith(f"unknown {library} model '{name}'. ")
    assert MODELS[model] in message
    assert message.endswith(f"names: onespike list models {library}.")


def test_models_that_are_no_models(convert):
    assert convert(model="bundled:cifar10-vt") == (
        "unknown bundled model 'cifar10-vt'. Did you mean 'cifar10-vit' or 'cifar10-resnet18'? "
        "Known: cifar10-resnet18, cifar10-vit, scenes."
    )
    assert convert(model="tim:vit") == (
        "unknown adapter 'tim'. Did you mean 'timm'? Known: bundled, detectron2, python, timm, torchvision, transformers."
    )
    assert convert(model="resnet18") == (
        "'resnet18' does not name a network. "
        "Write one of: bundled:NAME, detectron2:NAME, python:NAME, timm:NAME, torchvision:NAME, transformers:NAME."
    )


def test_the_kind_of_weights(convert):
    name = "timm:test_vit"
    assert convert(model=name, weights=()) == f"{name}: no weights given. Give one of {as_options(OPTIONS)}."


def test_data_folders(convert, tmp_path):
    missing, empty, file = tmp_path / "missing", tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.touch()
    (empty / "notes.txt").touch()
    endings = ".bmp, .jpeg, .jpg, .pgm, .png, .ppm, .tif, .tiff, .webp"
    assert (
        convert(calibrate=missing)
        == f"{missing}: no such folder. Check the path, or use bundled:cifar10-test."
    )
    assert (
        convert(calibrate=empty)
        == f"{empty}: no images in it. Give a folder with files that end in {endings}."
    )
    assert convert(calibrate=file) == f"{file}: this is a file. Give the folder that holds the images."
    assert convert(calibrate="bundled:cifar10") == (
        "unknown bundled images 'bundled:cifar10'. Did you mean 'bundled:cifar10-test' or "
        "'bundled:cifar10-calibration'? Known: bundled:cifar10-calibration, bundled:cifar10-test."
    )


def test_images_that_cannot_be_read(convert, tmp_path):
    folder = tmp_path / "images"
    cut = noise(folder / "0" / "0.png", 0)
    cut.write_bytes(cut.read_bytes()[:500])
    message = convert(calibrate=folder)
    assert message.startswith(f"{cut}: the image cannot be read (")
    assert message.endswith("). Replace or remove it.")
    cut.write_text("no image")
    assert convert(calibrate=folder) == (
        f"{cut}: the image cannot be read (it is no BMP, GIF, JPEG, PNG, PPM, TIFF or WEBP). Replace or remove it."
    )


def test_damaged_metadata_of_a_whole_image_are_passed_over(cli, tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "text"
    for index in range(4):
        path = tmp_path / "images" / f"{index}.jpg"
        with Image.open(noise(path.with_suffix(".png"), index)) as image:
            image.save(path, exif=exif)
        path.with_suffix(".png").unlink()
        data = bytearray(path.read_bytes())
        place = data.index(b"Exif\0\0") + 6
        data[place + 8 : place + 10] = b"\xff\xff"  # the number of its entries
        path.write_bytes(data)
    with pytest.warns(UserWarning, match="Corrupt EXIF data"), Image.open(path) as image:
        image.getexif()
    result = cli(f"convert {VIT} --preset sformer --calibrate {tmp_path / 'images'} --out {tmp_path / 'run'}")
    assert result.code == 0
    assert "Warning" not in result.err


class Code:
    def __reduce__(self):
        return Path.mkdir, (Path("ran"),)


def test_checkpoints(convert, monkeypatch, tmp_path, vit_weights):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "w.pth"
    assert convert(weights=("--weights", file)) == (
        f"{file}: no such checkpoint file. Check the path given to --weights."
    )
    file.write_bytes(vit_weights.read_bytes()[:100_000])
    message = convert(weights=("--weights", file))
    assert message.startswith(f"{file}: the file is damaged or cut short (")
    assert message.endswith("). Fetch or copy it again.")
    assert convert(weights=("--weights", vit_weights), model="bundled:cifar10-resnet18") == (
        f"{vit_weights}: the checkpoint is of another architecture than ResNet, which has 122 tensors: 122 missing, "
        "first conv1.weight; 97 unexpected, first pos_embed. Name the network that the weights were trained for."
    )
    torch.save({"a": Code()}, file)
    assert convert(weights=("--weights", file)) == (
        f"{file}: this pickle holds code, which is never run. Convert the file, where you trust it, to safetensors "
        "with safetensors.torch.save_file(state_dict, FILE)."
    )


def edited(tmp_path: Path, vit_weights: Path, edit) -> tuple:
    state = torch.load(vit_weights, weights_only=True)
    edit(state)
    torch.save(state, tmp_path / "edited.pth")
    return "--weights", tmp_path / "edited.pth"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_activations_that_are_not_finite(convert, tmp_path, vit_weights, value):
    weights = edited(tmp_path, vit_weights, lambda state: state["blocks.2.mlp.fc1.bias"].fill_(value))
    assert convert(weights=weights) == (
        "calibrate: blocks.2.mlp.fc2:linear0_input receives NaN or infinite values. "
        "Check the weights and the preprocessing, or calibrate in float32."
    )


def test_a_network_that_ignores_its_input(convert, tmp_path, vit_weights):
    def silence(state):
        state["patch_embed.proj.weight"].zero_()

    assert convert(weights=edited(tmp_path, vit_weights, silence)) == (
        "calibrate: the network's output is the same for all 4 inputs. "
        "Check its weights, and that the calibration inputs differ."
    )


def test_an_output_that_exists(cli, tmp_path):
    (tmp_path / "run").mkdir()
    result = cli(
        f"convert {VIT} --preset sformer --weights random --calibrate {CALIBRATION} --out {tmp_path / 'run'}"
    )
    assert result.message() == f"{tmp_path / 'run'} exists. Choose another name or remove it."
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "run"
    result = cli(
        f"convert {VIT} --preset sformer --weights random --calibrate {CALIBRATION} --limit 2 --out {out}"
    )
    assert result.message() == f"{out}: a part of this path is a file. Choose another place."
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "run"]


def test_evaluate(cli, tmp_path, vit_run):
    noise(tmp_path / "data" / "10" / "a.png", 0)
    file = tmp_path / "result.json"

    def message(*words: object) -> str:
        result = cli("evaluate", vit_run, "--json", file, *words).message()
        assert not file.exists()
        return result

    assert message("--data", tmp_path / "data") == (
        "the data has label 10, and the network has 10 classes (0 to 9). "
        "Use a data folder with the classes that the network was trained for."
    )
    assert message("--data", tmp_path / "none") == (
        f"{tmp_path / 'none'}: no such folder. Check the path, or use bundled:cifar10-test."
    )
    assert message("--data", TEST, "--limit", 0) == (
        "limit must be at least 1, not 0. Leave it out to use all 1000 images."
    )
    assert message("--data", TEST, "--batch-size", -3) == "batch size must be at least 1, not -3. Try 32."
    assert message("--data", TEST, "--device", "tpu9").endswith("). Try --device cpu.")


def test_theorems_and_lists(cli):
    assert (
        cli("reproduce", "theorems", "--trials", 0).message() == "trials must be at least 1, not 0. Try 200."
    )
    assert cli("list", "neuron").message() == (
        "unknown list 'neuron'. Did you mean 'neurons'? Known: columns, fields, formats, models, neurons, passes, presets, profiles."
    )


USAGE = {
    ("convert",): "Missing argument 'MODEL'.",
    ("convert", VIT, "--out", "run"): "Missing option '--calibrate'.",
    ("convert", VIT, "--calibrate", CALIBRATION): "Missing option '--out'.",
    ("doctor", "run"): "Missing option '--data'.",
    ("evaluate", "run", "--data", TEST, "--limit", "few"): "Invalid value for '--limit': ",
    ("inspect",): "Missing argument 'RUN'.",
    ("inspect", "run", "--shiny"): "No such option: --shiny",
    ("invert",): "No such command 'invert'.",
}


@pytest.mark.parametrize("words", USAGE, ids=" ".join)
def test_usage(cli, words):
    result = cli(*words)
    assert result.code == 2
    assert USAGE[words] in result.err
    assert "Try 'onespike" in result.err and "--help' for help." in result.err
    assert "Traceback" not in result.err


def test_remedies_are_options(convert):
    eager = convert("--attention", "eager", model="torchvision:vit_b_32")
    assert eager.endswith("computes attention with sdpa only. Use --attention sdpa.")
    assert convert("--set", "neuron=uniform", "--set", "steps=2").endswith("has one step. Use --set steps=1.")
    assert convert("--set", "placement=activation", model="timm:test_vit").endswith(
        "Use --set placement=synapse."
    )


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("preprocessor_config.json", {"image_mean": ["", 0.5, 0.5]}, "the folder holds no network"),
        ("preprocessor_config.json", {"image_mean": [0.5, 0.5]}, "the image processor: what it says does not"),
        ("preprocessor_config.json", {"size": {"height": 48, "width": 48}}, "the network fails on cifar10"),
        ("config.json", {"hidden_act": 7}, "the folder holds no network"),
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit(convert, transformers_folder, tmp_path, file, change, message):
    folder = tmp_path / "network"
    shutil.copytree(transformers_folder, folder)
    record = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**record, **change}))
    said = convert(model=f"transformers:{folder}", weights=("--weights", "pretrained"))
    assert said.startswith(f"transformers:{folder}: {message}")
