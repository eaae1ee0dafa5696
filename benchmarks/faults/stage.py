"""What the campaign works on, made small by the commands themselves: networks, images, annotations and runs."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import torch
from commands import Words, run
from PIL import Image

import onespike

CONVERT: Words = ("convert", "transformers:net", "--pretrained", "--calibrate", "cal", "--batch-size", "4")
TUNE: Words = (*CONVERT[:-1], "2", "--passes", "nearest,allocate,tune", "--out", "tuned")
EVALUATE: Words = ("evaluate", "run", "--data", "images", "--json", "out.json")
SEARCH: Words = (
    "search", "run", "--data", "images", "--trials", "4", "--sampler", "grid", "--budget", "9", "--json", "out.json",
)  # fmt: skip
ABLATE: Words = ("ablate", "run", "--data", "images", "--passes", "nearest,center", "--json", "out.json")
REPORT: Words = ("report", "run", "--data", "images")
COMPARE: Words = ("compare", "run", "run2", "--out", "both")
REPRODUCE: Words = (
    "reproduce", "table-percentile", "--model", "transformers:net", "--pretrained", "--data", "images",
    "--calibration-images", "2", "--out", "reps",
)  # fmt: skip
DETECT: Words = (
    "evaluate", "det", "--data", "scenes/images", "--annotations", "scenes/instances.json", "--json", "out.json",
)  # fmt: skip


def build(stage: Path, *, brief: bool = False) -> None:
    """Make the stage, or as much of it as a smoke test needs; it is there whole or not at all."""
    if stage.exists():
        return
    partial = stage.with_name(f"{stage.name}.building")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _network(partial / "net")
    for number in range(6):
        noise(partial / "images" / str(number // 2) / f"{number}.png", number)
    for number in range(8):
        noise(partial / "cal" / f"{number}.png", 100 + number)
    _checkpoints(partial)
    made((*CONVERT, "--out", "run"), partial)
    if not brief:
        _more(partial)
    partial.rename(stage)


def _more(stage: Path) -> None:
    """What later commands leave in a run, a second run, a detector, and a tuning that was interrupted."""
    _scenes(stage / "scenes")
    (stage / "map").mkdir()
    (stage / "map" / "map.json").write_text('{"": "cpu"}', encoding="utf-8")
    made((*CONVERT, "--scale", "0.5", "--out", "run2"), stage)
    scenes = ("convert", "bundled:scenes", "--calibrate", "scenes/images", "--out", "det")
    for words in (SEARCH, ABLATE, REPORT, ("report", "run2", "--data", "images"), REPRODUCE, scenes):
        made(words, stage)
    _tuning(stage)
    (stage / "out.json").unlink()


def made(words: Words, folder: Path) -> None:
    """Run a command that must succeed."""
    outcome = run(words, folder)
    if outcome.code != 0:
        raise SystemExit(f"onespike {' '.join(words)} ended with {outcome.code}:\n{outcome.tail}")


def noise(path: Path, seed: int, side: int = 32) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = Random(seed).randbytes(side * side * 3)  # noqa: S311 - no secret
    Image.frombytes("RGB", (side, side), pixels).save(path)


def _network(folder: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32,
        patch_size=16, num_labels=5, initializer_range=0.5,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)


def _checkpoints(stage: Path) -> None:
    from safetensors.torch import load_file

    state = load_file(stage / "net" / "model.safetensors")
    folder = stage / "weights"
    folder.mkdir()
    shutil.copy(stage / "net" / "model.safetensors", folder / "w.safetensors")
    torch.save(state, folder / "w.pth")
    torch.save(state, folder / "old.pth", _use_new_zipfile_serialization=False)
    torch.save({"epoch": 3, "state_dict": state, "loss": [0.5]}, folder / "training.pth")


def _scenes(folder: Path) -> None:
    """Two of the bundled scenes as files, their objects as run lengths, compressed ones, and polygons."""
    from pycocotools import mask

    package = Path(onespike.__file__).parent
    record = json.loads(next(package.rglob("scenes_test.json")).read_text(encoding="utf-8"))
    (folder / "images").mkdir(parents=True)
    with Image.open(next(package.rglob("scenes_test.png"))) as strip:
        side, pixels = math.isqrt(strip.width), strip.convert("RGB").tobytes()
    images = record["images"][:2]
    for row, image in enumerate(images):
        size = side * side * 3
        scene = Image.frombytes("RGB", (side, side), pixels[row * size : (row + 1) * size])
        scene.save(folder / "images" / image["file_name"])
    ids = {image["id"] for image in images}
    annotations = [a for a in record["annotations"] if a["image_id"] in ids]
    for number, annotation in enumerate(annotations):
        x, y, width, height = annotation["bbox"]
        if number % 3 == 0:
            annotation["segmentation"] = [[x, y, x + width, y, x + width, y + height, x, y + height]]
        elif number % 3 == 1:
            annotation["segmentation"] = _plain(mask.decode(annotation["segmentation"]), side)
    contents: dict[str, Any] = {**record, "images": images, "annotations": annotations}
    (folder / "instances.json").write_text(json.dumps(contents), encoding="utf-8")


def _plain(drawn: Any, side: int) -> dict[str, Any]:
    """Run lengths as a list of numbers, zeros first."""
    counts, last = [0], 0
    for value in drawn.flatten(order="F").tolist():
        if value != last:
            counts.append(0)
            last = value
        counts[-1] += 1
    return {"size": [side, side], "counts": counts}


def _tuning(stage: Path) -> None:
    """The state of an interrupted tuning, copied while a conversion works on it."""
    kept = stage / "tuning.safetensors"
    words = [sys.executable, "-m", "onespike", *TUNE]
    process = subprocess.Popen(words, cwd=stage, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    file = stage / ".tuned.passes" / "tune.safetensors"
    while process.poll() is None:
        try:
            shutil.copy(file, kept)
        except OSError:
            time.sleep(0.02)
    if process.returncode or not kept.exists():
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode} and left no state to resume")
    shutil.rmtree(stage / "tuned")
    file.parent.mkdir(exist_ok=True)
    kept.rename(file)
