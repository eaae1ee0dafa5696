"""Bad input: exit code 2, one message that ends with the remedy (word by word), nothing written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from command_line import CALIBRATION, CONVERT, TEST, VIT, noise
from PIL import Image

from onespike.adapters.base import OPTIONS
from onespike.cli.commands import as_options
from onespike.energy.columns import searchable
from onespike.neurons import NEURONS
from onespike.presets import PRESETS

SCALE = "The paper uses 0.25 to 0.36."
SOFTMAX = "a fixed softmax threshold must be from 1.2e-38 to 3.4e+38, as float32 holds it, not"
DEVICE = "cannot be used here (…). Try --device cpu."
SEARCH = "search {vit_run} --data {TEST} --limit 2"
EVALUATE = "evaluate {vit_run} --data {TEST} --limit 4"
DETECT = "evaluate {detector_run} --data {coco}/images"
TEXT = "convert transformers:{llama_folder} --weights pretrained --out {tmp_path}/run --calibrate {story}"
BOXES = "…boxes are scored with annotations…"
REFUSED = {
    "--preset sforme": f"unknown preset 'sforme'. Did you mean 'sformer' or 'uniform'? Known: {', '.join(sorted(PRESETS))}.",
    "--set neuron=snf": f"unknown neuron 'snf'. Did you mean 'sfn'? Known: {', '.join(sorted(NEURONS))}.",
    "--set rounding=up": "unknown rounding 'up'. Known: nearest, paper, thrifty.",
    "--set domain=al": "unknown domain 'al'. Did you mean 'all'? Known: all, sided.",
    "--set io=digital": "unknown io 'digital'. Known: analog, int8, spiking.",
    "--set granularity=layer": "unknown granularity 'layer'. Known: channel, site.",
    "--set softmax=row": "unknown softmax threshold 'row'. Known: head, model, site.",
    "--attention flash": "unknown attention 'flash'. Known: eager, sdpa.",
    "--set levels=mixd:8": "unknown kind of levels 'mixd'. Did you mean 'mixed'? Known: bits, density, exponential, linear, mixed.",
    "--set levels=mixed:x": "levels 'mixed:x': 'x' is not an integer. Write for example mixed:8, mixed:64+8 or 1,2,4.",
    "--set levels=0": "levels 'mixed:0' need M ≥ 1 and a tail ≥ 0. The paper uses mixed:8.",
    "--set levels=2,1": "levels must increase, and '2,1' do not. Write each once, the smallest first.",
    "--scale 0": f"scale must be in (0, 1], not 0. {SCALE}",
    "--scale 1.5": f"scale must be in (0, 1], not 1.5. {SCALE}",
    "--scale nan": f"scale must be in (0, 1], not nan. {SCALE}",
    "--scale 1e-300": f"scale must be in (0, 1] and not below 1.2e-38, the least that float32 holds in full, not 1e-300. {SCALE}",
    "--set percentile=-1": "percentile must be in [0, 50), not -1. The paper uses 1.",
    "--set percentile=50": "percentile must be in [0, 50), not 50. The paper uses 1.",
    "--set percentile=nan": "percentile must be in [0, 50), not nan. The paper uses 1.",
    "--set softmax=0": f"{SOFTMAX} 0. The paper uses 0.0035.",
    "--set softmax=1e-300": f"{SOFTMAX} 1e-300. The paper uses 0.0035.",
    "--set softmax=nan": f"{SOFTMAX} nan. The paper uses 0.0035.",
    "--set softmax=inf": f"{SOFTMAX} inf. The paper uses 0.0035.",
    "--limit 0": "limit must be at least 1, not 0. Leave it out to use all 256 images.",
    "--batch-size 0": "batch size must be at least 1, not 0. Try 32.",
    "--set exclude=*": "convert: no site would spike. Widen include, or narrow exclude.",
    "--set neuron=uniform --set steps=2": "…has one step. Use --set steps=1.",
    "--set include=backbone": "…has no backbone apart from the rest…",
    "--reference-weights": "--reference-weights needs a checkpoint to refer to. Give it with --weights FILE.",
    "--device tpu9": f"device 'tpu9' {DEVICE}",
    "--device cuda:99": f"device 'cuda:99' {DEVICE}",
    "--device meta": f"device 'meta' {DEVICE}",
    "--passes nearest,alocate": "unknown pass 'alocate'…",
    "--passes tune": "…'tune' needs 'allocate'…",
    "--passes nearest --energy w8a8": "…w8a8…",
    "--passes nearest --budget -1": "…budget must be above 0…",
    "--budget 0.2": "…met by passes, and there are none…",
    "--length 8": "bundled:cifar10-vit reads no text, and --length is for text. Leave it out.",
    "--calibrate {tmp_path}/none": "{tmp_path}/none: no such folder. Check the path, or use bundled:cifar10-test.",
    "--calibrate {vit_weights}": "{vit_weights}: this is a file. Give the folder that holds the images.",
    "--calibrate bundled:cifar10": "unknown bundled images 'bundled:cifar10'. Did you mean 'bundled:cifar10-test' or "
    "'bundled:cifar10-calibration'? Known: bundled:cifar10-calibration, bundled:cifar10-test.",
    "--weights {tmp_path}/w.pth": "{tmp_path}/w.pth: no such checkpoint file. Check the path given to --weights.",
    "--preprocess mean=0.5": "a normalization is three means and three positive deviations…",
    "--preprocess crop=much": "--preprocess crop takes numbers, not 'much'. Write --preprocess crop=224.",
    "--preprocess blur=1": "unknown preprocessing 'blur'. Known: crop, mean, resize, std.",
    "convert timm:vit_tiny_patch16_242 --weights random --calibrate {images} --out {tmp_path}/run":
        "unknown timm model 'vit_tiny_patch16_242'. …Did you mean 'vit_tiny_patch16_224'…names: onespike list models timm.",
    "convert torchvision:resnet19 --weights random --calibrate {images} --out {tmp_path}/run":
        "unknown torchvision model 'resnet19'. …Did you mean 'resnet18'…names: onespike list models torchvision.",
    "convert bundled:cifar10-vt --calibrate {images} --out {tmp_path}/run": "unknown bundled model 'cifar10-vt'. "
    "Did you mean 'cifar10-vit' or 'cifar10-resnet18'? Known: cifar10-resnet18, cifar10-vit, scenes.",
    "convert tim:vit --calibrate {images} --out {tmp_path}/run": "unknown adapter 'tim'. Did you mean 'timm'? "
    "Known: bundled, detectron2, python, timm, torchvision, transformers.",
    "convert resnet18 --calibrate {images} --out {tmp_path}/run": "'resnet18' does not name a network. "
    "Write one of: bundled:NAME, detectron2:NAME, python:NAME, timm:NAME, torchvision:NAME, transformers:NAME.",
    "convert timm:test_vit --calibrate {images} --out {tmp_path}/run":
        f"timm:test_vit: no weights given. Give one of {as_options(OPTIONS)}.",
    "convert timm:test_vit --weights random --calibrate {images} --set placement=activation --preset sformer --out {tmp_path}/run":
        "…Use --set placement=synapse.",
    "convert bundled:cifar10-resnet18 --weights {vit_weights} --calibrate {images} --out {tmp_path}/run": "{vit_weights}: the "
    "checkpoint is of another architecture than ResNet, which has 122 tensors: 122 missing, first conv1.weight; 97 unexpected, "
    "first pos_embed. Name the network that the weights were trained for.",
    "convert transformers:{detector} --weights pretrained --calibrate {coco}/images --set include=backbone --set include=vit.* "
    "--out {tmp_path}/run": "…Give one of them…",
    f"{TEXT} --length 64": "…--length must be from 2 to 32…",
    f"{TEXT} --preprocess mean=0,0,0 --preprocess std=1,1,1": "…Leave them out.",
    f"{TEXT} --length 16 --device-map blocks:many": "'many' is no size of memory. Write for example 8GB or 500MB.",
    f"{TEXT} --length 16 --device-map blocks --preset fast": "blocks: refit change weights, and need all of them in memory.…",
    f"{EVALUATE} --limit 0": "limit must be at least 1, not 0. Leave it out to use all 1000 images.",
    f"{EVALUATE} --batch-size -3": "batch size must be at least 1, not -3. Try 32.",
    f"{EVALUATE} --integer --device meta": f"device 'meta' {DEVICE}",
    f"{EVALUATE} --data {{tmp_path}}/none": "{tmp_path}/none: no such folder. Check the path, or use bundled:cifar10-test.",
    f"{EVALUATE} --format onyx": "unknown form 'onyx'. Did you mean 'onnx'?…",
    f"{EVALUATE} --format all --limit 1": "benchmark: at least two inputs are needed. Give a larger --limit or --batch-size.",
    f"{EVALUATE} --profile loihi": "unknown hardware profile 'loihi'. Did you mean 'loihi-14nm'?…",
    f"{EVALUATE} --profile no.json": "no.json: no such file.…",
    f"{EVALUATE} --compare --integer": "--compare makes integer networks of its own…",
    f"{EVALUATE} --integer --device-map blocks": "--integer and --compare make integers of all weights in memory…",
    f"{EVALUATE} --device-map nowhere": "device map 'nowhere': neither a strategy…",
    f"{EVALUATE} --annotations {{coco}}/instances.json": "…Leave --annotations out…",
    f"{EVALUATE} --picture both.png": "…Leave it out…",
    "evaluate {vit_run}": "evaluate: there is nothing to measure on. Give --data DIR, or --tasks NAMES.",
    "evaluate {text_run} --data {story} --annotations a.json": "…has no use for boxes…",
    DETECT: BOXES,
    f"{DETECT} --annotations absent.json": "absent.json: no such file…",
    "search {detector_run} --data {coco}/images --trials 2": BOXES,
    "report {detector_run} --data .": BOXES,
    "report {vit_run} --annotations x.json": "--annotations says what is on the images of --data. Give both.",
    "report {vit_run} --held-out": "--held-out says which images of --data to take. Give both.",
    "report {vit_run} --energy counts": "--energy draws several runs, and there is one. Leave it out.",
    "report {vit_run} {vit_run} --profile horowitz-45nm-sram": "…the reports are priced already. Give --data DIR.",
    "report {vit_run} {text_run} --data {TEST}": "report: the task of {vit_run} is …Compare runs of one task at a time.",
    "report {text_run} {vit_run} --data {TEST}": "report: the task of {text_run} is …Compare runs of one task at a time.",
    "doctor {vit_run} --data {TEST} --images 1": "the doctor needs at least 2 images, not 1. Try --images 64.",
    "doctor {vit_run} --data {TEST} --budget 0.2": "--budget and --energy are of the rows of --passes. Give it, too.",
    "doctor {vit_run} --data {TEST} --passes run --device nowhere": f"device 'nowhere' {DEVICE}",
    f"{SEARCH} --objective loss": "search: the objective of bundled:cifar10-vit is top1 or agreement or kl, not loss. Leave --objective out.",
    f"{SEARCH} --sampler random": "unknown sampler 'random'. Known: gp, grid, tpe.",
    f"{SEARCH} --budget 0": "the budget must be above 0, not 0. The paper's networks use 0.15 to 0.19.",
    f"{SEARCH} --energy joule": f"unknown energy column 'joule'. Known: {', '.join(sorted(searchable()))}.",
    f"{SEARCH} --trials 0": "trials must be at least 1, not 0. The paper uses 50.",
    "generate {vit_run} a": "generate: this network classifies, and writes no text.…",
    "generate {text_run} 'the cat' --length 30": "…the network's context of 32 is full…",
    "generate {text_run} a b --stream": "…Give one text…",
    "generate {text_run} a --cache fixed": "unknown cache 'fixed'…",
    "generate {text_run} a --length 0": "--length must be at least 1, not 0.",
    "generate {text_run} a --temperature -1": "--temperature must not be below 0, and is -1.",
    "serve {vit_run} --address 70000": "--address ends in a port from 0 to 65535, not 70000.",
    "push {vit_run} me/vit": "a card names the license of the original network. Give it with --license NAME.",
    "inspect {vit_run} --model timm:resnet18": "--model names code of your own, and timm:resnet18 needs none. Leave it out.",
    "list neuron": "unknown list 'neuron'. Did you mean 'neurons'? Known: columns, fields, formats, models, neurons, passes, presets, profiles.",
    "demo boxes": "unknown demo 'boxes'…",
    "reproduce theorems --trials 0": "trials must be at least 1, not 0. Try 200.",
    "reproduce table-enrgy": "unknown study 'table-enrgy'. Did you mean 'table-energy' or …, table-percentile, …",
    "reproduce table-energy --model timm:resnet18": "a network of your own is measured on images of your own. Give them with --data DIR.",
    "reproduce table-energy --images 1": "calibration needs at least 2 images, not 1. Try 64.",
    "reproduce table-ablation --device nowhere": f"device 'nowhere' {DEVICE}",
    "reproduce table-detection --model {VIT} --out {tmp_path}":
        "table-detection is about detection, and bundled:cifar10-vit is not. Give another --model.",
    "reproduce table-classification --model bundled:scenes --out {tmp_path}":
        "table-classification is about classification, and bundled:scenes is not. Give another --model.",
    "reproduce table-detection --calibrate bundled:scenes-calibration --out {tmp_path}": "…Leave --calibrate out…",
    "run {VIT} --data {TEST} --images 0": "--images must be at least 1, not 0.",
    "run {VIT} --data nowhere --out {tmp_path}/run": "nowhere…",
    "run {VIT} --data {TEST} --format onxx --out {tmp_path}/run": "unknown format 'onxx'…",
    "run bundled:scenes --data {images} --out {tmp_path}/run": BOXES,
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_words(refused, words):
    refused(words, REFUSED[words])


USAGE = {
    "convert": "Missing argument 'MODEL'.",
    f"convert {VIT} --out run": "Missing option '--calibrate'.",
    f"convert {VIT} --calibrate {CALIBRATION}": "Missing option '--out'.",
    "doctor run": "Missing option '--data'.",
    f"evaluate run --data {TEST} --limit few": "Invalid value for '--limit': ",
    "inspect": "Missing argument 'RUN'.",
    "inspect run --shiny": "No such option: --shiny",
    "invert": "No such command 'invert'.",
}


@pytest.mark.parametrize("words", USAGE)
def test_usage(cli, words):
    result = cli(words)
    assert result.code == 2
    assert USAGE[words] in result.err and "--help' for help." in result.err
    assert "Traceback" not in result.err


def test_images_that_cannot_be_read(refused, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "notes.txt").touch()
    endings = ".bmp, .jpeg, .jpg, .pgm, .png, .ppm, .tif, .tiff, .webp"
    none = f"{folder}: no images in it. Give a folder with files that end in {endings}."
    refused(f"--calibrate {folder}", none)
    cut = noise(folder / "0" / "0.png", 0)
    cut.write_bytes(cut.read_bytes()[:500])
    refused(f"--calibrate {folder}", f"{cut}: the image cannot be read (…). Replace or remove it.")
    cut.write_text("no image")
    kinds = "it is no BMP, GIF, JPEG, PNG, PPM, TIFF or WEBP"
    refused(f"--calibrate {folder}", f"{cut}: the image cannot be read ({kinds}). Replace or remove it.")


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
    result = cli(f"{CONVERT} --calibrate {tmp_path / 'images'} --out {tmp_path / 'run'}").good()
    assert "Warning" not in result.err


class Code:
    def __reduce__(self):
        return Path.mkdir, (Path("ran"),)


def test_checkpoints(refused, monkeypatch, tmp_path, vit_weights):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "w.pth"
    file.write_bytes(vit_weights.read_bytes()[:100_000])
    damaged = f"{file}: the file is damaged or cut short (…). Fetch or copy it again."
    refused(f"--weights {file}", damaged)
    torch.save({"a": Code()}, file)
    advice = "Convert the file, where you trust it, to safetensors with safetensors.torch.save_file(state_dict, FILE)."
    refused(f"--weights {file}", f"{file}: this pickle holds code, which is never run. {advice}")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(("blocks.2.mlp.fc1.bias", value, "calibrate: blocks.2.mlp.fc2:linear0_input receives NaN or infinite values. "
           "Check the weights and the preprocessing, or calibrate in float32.") for value in (float("nan"), float("inf"))),
        ("patch_embed.proj.weight", 0.0, "calibrate: the network's output is the same for all 4 inputs. "
         "Check its weights, and that the calibration inputs differ."),
    ],
)  # fmt: skip
def test_networks_that_cannot_be_calibrated(refused, tmp_path, vit_weights, name, value, message):
    state = torch.load(vit_weights, weights_only=True)
    state[name].fill_(value)
    torch.save(state, tmp_path / "edited.pth")
    refused(f"--weights {tmp_path / 'edited.pth'}", message)


def test_an_output_that_exists(refused, tmp_path):
    run, file = tmp_path / "run", tmp_path / "file"
    run.mkdir()
    file.touch()
    refused(f"--out {run}", f"{run} exists. Choose another name or remove it.")
    refused(f"run {VIT} --data {TEST} --out {run}", f"{run} exists. Choose another name or remove it.")
    refused(f"--out {file}/run", f"{file}/run: a part of this path is a file. Choose another place.")


def test_labels_that_do_not_fit(refused, tmp_path):
    noise(tmp_path / "data" / "10" / "a.png", 0)
    refused(f"evaluate {{vit_run}} --data {tmp_path / 'data'}", (
        "the data has label 10, and the network has 10 classes (0 to 9). "
        "Use a data folder with the classes that the network was trained for."
    ))  # fmt: skip
    (tmp_path / "data" / "10").rename(tmp_path / "data" / "house")
    message = "…the folder 'house' is none of the 10 classes…"
    refused(f"run {VIT} --data {tmp_path / 'data'} --out {tmp_path / 'run'}", message)
    message = "max_drop: these labels do not say whether an answer is right.…"
    refused(f"--preset fast --max-drop 5% --data {tmp_path / 'data' / 'house'}", message)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("preprocessor_config.json", {"image_mean": ["", 0.5, 0.5]}, "the folder holds no network"),
        ("preprocessor_config.json", {"image_mean": [0.5, 0.5]}, "the image processor: what it says does not"),
        ("preprocessor_config.json", {"size": {"height": 48, "width": 48}}, "the network fails on cifar10"),
        ("config.json", {"hidden_act": 7}, "the folder holds no network"),
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit(refused, transformers_folder, tmp_path, file, change, message):
    folder = shutil.copytree(transformers_folder, tmp_path / "network")
    record = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**record, **change}))
    words = f"convert transformers:{folder} --weights pretrained --calibrate {CALIBRATION} --limit 4"
    refused(f"{words} --preset sformer --out {tmp_path / 'run'}", f"transformers:{folder}: {message}…")


def test_annotations_and_images_of_a_detector(refused, coco, tmp_path):
    record = json.loads((coco / "instances.json").read_text())
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps({**record, "annotations": []}))
    refused(
        f"{DETECT} --annotations {empty}",
        f"{empty}: the file is damaged (at annotations: list should have at least 1 item…",
    )
    images = shutil.copytree(coco / "images", tmp_path / "images")
    words = f"evaluate {{detector_run}} --data {images} --annotations {coco / 'instances.json'}"
    whole = (images / "2.png").read_bytes()
    for contents in (b"nothing", whole[: len(whole) // 2]):
        (images / "2.png").write_bytes(contents)
        refused(words, f"{images / '2.png'}: image id 14 cannot be read…")
    (images / "1.png").unlink()
    refused(words, "…1.png: the file of image id 7 is missing…")


def test_texts(refused, tmp_path):
    for name, text, message in (
        ("empty.txt", "\n", "…there is no text in it. Give a file with some."),
        ("short.txt", "the cat", "…3 tokens, fewer than one window of 32…"),
        (
            "ids.jsonl",
            '{"input_ids": [31, 32]}',
            "…token 1 has the number 32, and the network knows 32 tokens…",
        ),
    ):
        (tmp_path / name).write_text(text)
        refused(f"{TEXT} --calibrate {tmp_path / name}", message)


def test_networks_that_read_text_and_do_not_fit(refused, tmp_path):
    from transformers import LlamaConfig, LlamaModel

    from language_folders import llama, tokenizer

    sizes = dict(
        vocab_size=32, hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    wrong, bare = llama(tmp_path / "wrong", words=tokenizer(size=50)), llama(tmp_path / "bare")
    LlamaModel(LlamaConfig(**sizes)).save_pretrained(tmp_path / "headless")
    tokenizer().save_pretrained(tmp_path / "headless")
    (bare / "tokenizer.json").unlink()
    for folder, message in {
        wrong: f"transformers:{wrong}: its tokenizer has 50 tokens, and the network knows 32. "
        "Put the tokenizer that the network was trained with into the folder.",
        tmp_path / "headless": "…LlamaModel has no language head, and nothing can be scored.…",
        bare: "…the folder holds no network that can be loaded…",
    }.items():
        refused(
            f"convert transformers:{folder} --weights pretrained --calibrate {{story}} --out {tmp_path / 'run'}",
            message,
        )
