"""Bad input: exit code 2, one message that ends with the remedy (word by word), nothing written."""

from __future__ import annotations

import json
import shutil

import pytest
from command_line import CALIBRATION, CONVERT, TEST, VIT
from PIL import Image

from onespike.energy.columns import searchable
from onespike.presets import PRESETS

DEVICE = "cannot be used here (…). Try --device cpu."
SEARCH = "search {vit_run} --data {TEST} --limit 2"
EVALUATE = "evaluate {vit_run} --data {TEST} --limit 4"
DETECT = "evaluate {detector_run} --data {coco}/images"
TEXT = "convert transformers:{llama_folder} --weights pretrained --out {tmp_path}/run --calibrate {story}"
BOXES = "…boxes are scored with annotations…"
REFUSED = {
    "--preset sforme": f"unknown preset 'sforme'. Did you mean 'sformer' or 'uniform'? Known: {', '.join(sorted(PRESETS))}.",
    "--set softmax=row": "unknown softmax 'row'. Known: head, model, site.",
    "--set softmax=0": "a fixed softmax threshold must be from 1.2e-38 to 3.4e+38, as float32 holds it, not 0. The paper uses 0.0035.",
    "--set percentile=-1": "percentile must be in [0, 50), not -1. The paper uses 1.",
    "--set neuron=uniform --set steps=2": "…has one step. Use --set steps=1.",
    "--set include=backbone": "…has no backbone apart from the rest…",
    "--device cuda:99": f"device 'cuda:99' {DEVICE}",
    "--passes nearest --energy w8a8": "…w8a8…",
    "--passes nearest --budget -1": "…budget must be above 0…",
    "--budget 0.2": "…met by passes, and there are none…",
    "--length 8": "bundled:cifar10-vit reads no text, and --length is for text. Leave it out.",
    "--calibrate {vit_weights}": "{vit_weights}: this is a file. Give the folder that holds the images.",
    "--weights {tmp_path}/w.pth": "{tmp_path}/w.pth: no such checkpoint file. Check the path given to --weights.",
    "--preprocess mean=0.5": "a normalization is three means and three positive deviations…",
    "--preprocess crop=much": "--preprocess crop takes numbers, not 'much'. Write --preprocess crop=224.",
    "--set factors=a": "'a' is not a glob with its numbers. Write for example '*.fc1:*=0.5'.",
    "--recipe {tmp_path}/none": "--preset and --recipe both say where the recipe starts. Give one of them.",
    "convert {VIT} --calibrate {CALIBRATION} --out {tmp_path}/run --recipe {tmp_path}/none":
        "{tmp_path}/none: the recipe cannot be read (No such file or directory). Give a YAML or JSON file.",
    "--percentile 2": "--percentile is now --set percentile=…. See: onespike list fields",
    "--pretrained": "--pretrained is now --weights pretrained.",
    "search {vit_run} --per-site=kind": "--per-site is now the pass allocate: onespike convert …",
    "--preprocess blur=1": "unknown preprocessing 'blur'. Known: crop, mean, resize, std.",
    "convert timm:test_vit --weights random --calibrate {images} --set placement=activation --preset sformer --out {tmp_path}/run":
        "…Use --set placement=synapse.",
    "convert transformers:{detector} --weights pretrained --calibrate {coco}/images --set include=backbone --set include=vit.* "
    "--out {tmp_path}/run": "…both say what spikes. Give one.",
    f"{TEXT} --length 64": "…--length must be from 2 to 32…",
    f"{TEXT} --preprocess mean=0,0,0 --preprocess std=1,1,1": "…Leave them out.",
    f"{TEXT} --length 16 --device-map blocks --preset fast": "blocks: refit change weights, and need all of them in memory.…",
    f"{EVALUATE} --format all --limit 1": "benchmark: at least two inputs are needed. Give a larger --limit or --batch-size.",
    f"{EVALUATE} --profile no.json": "no.json: no such file.…",
    f"{EVALUATE} --compare --integer": "--compare makes integer networks of its own…",
    f"{EVALUATE} --integer --device-map blocks": "--integer and --compare make integers of all weights in memory…",
    f"{EVALUATE} --device-map nowhere": "device map 'nowhere': neither a strategy…",
    f"{EVALUATE} --annotations {{coco}}/instances.json": "…Leave --annotations out…",
    "evaluate {text_run} --data {story} --annotations a.json": "…has no use for boxes…",
    DETECT: BOXES,
    f"{DETECT} --annotations absent.json": "absent.json: no such file…",
    "report {vit_run} --annotations x.json": "--annotations is for what is measured, and nothing is. Give --data DIR, too.",
    "report {vit_run} --held-out": "--held-out is for what is measured, and nothing is. Give --data DIR, too.",
    "report {vit_run} --energy counts": "--energy draws several runs, and there is one. Leave it out.",
    "report {vit_run} {vit_run} --profile horowitz-45nm-sram": "--profile is for what is measured…",
    "report {vit_run} {text_run} --data {TEST}": "report: the task of {vit_run} is …Compare runs of one task at a time.",
    "doctor {vit_run} --data {TEST} --images 1": "the doctor needs at least 2 images, not 1. Try --images 64.",
    "doctor {vit_run} --data {TEST} --budget 0.2": "--budget and --energy are of the rows of --passes. Give it, too.",
    f"{SEARCH} --objective loss": "unknown objective 'loss'. Known: agreement, kl, top1.",
    "search {detector_run} --data bundled:scenes-calibration --objective top1": "unknown objective 'top1'. Known: ap, kl.",
    f"{SEARCH} --energy joule": f"unknown energy column 'joule'. Known: {', '.join(sorted(searchable()))}.",
    "generate {vit_run} a": "generate: this network classifies, and writes no text.…",
    "generate {text_run} 'the cat' --length 30": "…the network's context of 32 is full…",
    "generate {text_run} a b --stream": "…Give one text…",
    "generate {text_run} a --cache fixed": "unknown cache 'fixed'…",
    "generate {text_run} a --length 0": "--length must be at least 1, not 0.",
    "generate {text_run} a --temperature -1": "--temperature must not be below 0, and is -1.",
    "serve {vit_run} --address 70000": "--address ends in a port from 0 to 65535, not 70000.",
    "push {vit_run} me/vit": "a card names the license of the original network. Give it with --license NAME.",
    "inspect {vit_run} --model timm:resnet18": "--model names code of your own, and timm:resnet18 needs none. Leave it out.",
    "export {small_run} --format onnx --out {tmp_path}/a.pt2":
        "export: files of onnx end in .onnx, by which other programs know them. Choose --out {tmp_path}/a.onnx.",
    "export {tmp_path}/none --format pt2 --out {tmp_path}/a.pt2": "{tmp_path}/none: no run here…",
    "list neuron": "unknown list 'neuron'. Did you mean 'neurons'? Known: columns, fields, formats, models, neurons, passes, presets, profiles.",
    "demo boxes": "unknown demo 'boxes'…",
    "reproduce theorems --trials 0": "trials must be at least 1, not 0. Try 200.",
    "reproduce table-enrgy": "unknown study 'table-enrgy'. Did you mean 'table-energy' or …, table-percentile, …",
    "reproduce table-energy --model timm:resnet18": "a network of your own is measured on images of your own. Give --data DIR.",
    "reproduce table-energy --images 1": "calibration needs at least 2 images, not 1. Try 64.",
    "reproduce table-detection --model {VIT} --out {tmp_path}":
        "table-detection is about detection, and bundled:cifar10-vit is not. Give another --model.",
    "reproduce table-detection --calibrate bundled:scenes-calibration --out {tmp_path}": "…Leave --calibrate out…",
    "run {VIT} --data {TEST} --images 0": "--images must be at least 1, not 0.",
    **{f"run {{VIT}} --data {{TEST}} --limit 6 --images 4 --out '{place}'": f"{place or '.'} exists. Choose another name or remove it."
       for place in (".", "/", "")},
    "run {VIT} --data nowhere --out {tmp_path}/run": "nowhere…",
    "run {VIT} --data {TEST} --format onxx --out {tmp_path}/run": "unknown format 'onxx'…",
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
    "inspect run --shiny": "No such option: --shiny",
    "invert": "No such command 'invert'.",
}


@pytest.mark.parametrize("words", USAGE)
def test_usage(cli, words):
    result = cli(words)
    assert result.code == 2
    assert USAGE[words] in result.err and "--help' for help." in result.err
    assert "Traceback" not in result.err


def test_damaged_metadata_of_a_whole_image_are_passed_over(cli, tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "text"
    (tmp_path / "images").mkdir()
    for name in "abcd":
        path = tmp_path / "images" / f"{name}.jpg"
        Image.effect_noise((32, 32), 80).convert("RGB").save(path, exif=exif)
        data = bytearray(path.read_bytes())
        place = data.index(b"Exif\0\0") + 6
        data[place + 8 : place + 10] = b"\xff\xff"  # the number of its entries
        path.write_bytes(data)
    with pytest.warns(UserWarning, match="Corrupt EXIF data"), Image.open(path) as image:
        image.getexif()
    result = cli(f"{CONVERT} --calibrate {tmp_path / 'images'} --out {tmp_path / 'run'}").good()
    assert "Warning" not in result.err


def test_an_output_that_exists(refused, tmp_path):
    run, file = tmp_path / "run", tmp_path / "file"
    run.mkdir()
    file.touch()
    refused(f"--out {run}", f"{run} exists. Choose another name or remove it.")
    refused(f"run {VIT} --data {TEST} --out {run}", f"{run} exists. Choose another name or remove it.")
    refused(f"--out {file}/run", f"{file}/run: a part of this path is a file. Choose another place.")


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


def test_images_of_a_detector(refused, coco, tmp_path):
    images = shutil.copytree(coco / "images", tmp_path / "images")
    words = f"evaluate {{detector_run}} --data {images} --annotations {coco / 'instances.json'}"
    whole = (images / "2.png").read_bytes()
    for contents in (b"nothing", whole[: len(whole) // 2]):
        (images / "2.png").write_bytes(contents)
        refused(words, f"{images / '2.png'}: image id 14 cannot be read…")
    (images / "1.png").unlink()
    refused(words, "…1.png: the file of image id 7 is missing…")


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
