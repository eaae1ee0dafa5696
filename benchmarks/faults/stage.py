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
from commands import Words, copy_of, run
from PIL import Image

import onespike

CONVERT: Words = (
    "convert", "transformers:net", "--weights", "pretrained", "--preset", "sformer", "--calibrate", "cal", "--batch-size", "4",
)  # fmt: skip
TUNE: Words = (
    "convert", "transformers:net", "--weights", "pretrained", "--calibrate", "cal", "--batch-size", "2",
    "--passes", "nearest,allocate,tune", "--out", "tuned",
)  # fmt: skip
EVALUATE: Words = ("evaluate", "run", "--data", "images", "--json", "out.json")
SEARCH: Words = (
    "search", "run", "--data", "images", "--trials", "4", "--sampler", "grid", "--budget", "9", "--json", "out.json",
)  # fmt: skip
ABLATE: Words = ("doctor", "run", "--data", "images", "--passes", "nearest,center", "--json", "out.json")
REPORT: Words = ("report", "run", "--data", "images")
COMPARE: Words = ("report", "run", "run2", "--out", "both")
REPRODUCE: Words = (
    "reproduce", "table-percentile", "--model", "transformers:net", "--weights", "pretrained", "--data", "images",
    "--images", "2", "--out", "reps",
)  # fmt: skip
DETECT: Words = (
    "evaluate", "det", "--data", "scenes/images", "--annotations", "scenes/instances.json", "--json", "out.json",
)  # fmt: skip
WORKFLOW: Words = (
    "run", "transformers:net", "--weights", "pretrained", "--preset", "sformer", "--scale", "0.5", "--calibrate", "cal",
    "--data", "images", "--out", "whole",
)  # fmt: skip
EXPORT: Words = (
    "export", "run", "--format", "integers", "--data", "cal", "--limit", "4", "--out", "exported",
)  # fmt: skip
BENCHMARK: Words = (
    "evaluate", "run", "--data", "images", "--format", "original,eager,integer", "--json", "out.json",
)  # fmt: skip
WRITE: Words = (
    "convert", "transformers:writer", "--weights", "pretrained", "--preset", "sformer", "--length", "16",
    "--calibrate", "story/story.txt", "--batch-size", "4", "--out", "text",
)  # fmt: skip
GENERATE: Words = ("generate", "text", "the cat", "--length", "3", "--json", "out.json")
SERVE: Words = ("serve", "run", "--address", "0")
PUSH: Words = ("push", "run", "me/net", "--license", "mit")
REQUEST = (
    b"POST /answer?suffix=.png&scale=0.5 HTTP/1.1\r\nHost: localhost\r\nX-Onespike: live\r\nContent-Length: "
)
ANSWERS = {
    "create": [200, {"url": "http://127.0.0.1/me/net"}],
    "preupload": [200, "all"],
    "commit": [200, {"commitUrl": "http://127.0.0.1/me/net/commit/1", "commitOid": "1", "success": True}],
    "other": [200, {"errors": [], "warnings": []}],
}
"""What a hub answers to the calls of an upload."""


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
    scenes = (
        "convert",
        "bundled:scenes",
        "--preset",
        "sformer",
        "--calibrate",
        "scenes/images",
        "--out",
        "det",
    )
    _others(stage)
    made(PUSH, stage)
    (stage / "run" / "README.md").unlink()
    more = (EXPORT, SEARCH, ABLATE, REPORT, ("report", "run2", "--data", "images"), REPRODUCE, scenes, WRITE)
    for words in (*more, WORKFLOW):
        made(words, stage)
    _plans(stage)
    _tuning(stage)
    (stage / "out.json").unlink()


def _others(stage: Path) -> None:
    """A network that writes with a text, recipes, a request to the live page, and a hub's answers."""
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    from language_folders import llama, text

    llama(stage / "writer")
    for name in ("story", "recipes", "asked", "hub"):
        (stage / name).mkdir()
    text(stage / "story" / "story.txt", 0, 127)
    picture = (stage / "images" / "0" / "0.png").read_bytes()
    request = REQUEST + f"{len(picture)}\r\nConnection: close\r\n\r\n".encode() + picture
    (stage / "asked" / "request.http").write_bytes(request)
    (stage / "hub" / "answers.json").write_text(json.dumps(ANSWERS), encoding="utf-8")
    fields = {
        "version": 1,
        "preset": "sformer",
        "scale": 0.5,
        "levels": "mixed:8",
        "exclude": ["classifier:*"],
    }
    (stage / "recipes" / "a.json").write_text(json.dumps(fields), encoding="utf-8")
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in fields.items())
    (stage / "recipes" / "a.yaml").write_text(lines, encoding="utf-8")


def _plans(stage: Path) -> None:
    """The words of a workflow, and its journal: done, and half done beside its run without a report."""
    from onespike.runtime.validated import sealed

    record = json.loads((stage / "whole" / "plan.json").read_text(encoding="utf-8"))
    (stage / "planned").mkdir()
    (stage / "planned" / "words.json").write_text(json.dumps(WORKFLOW), encoding="utf-8")
    half = stage / "half"
    half.mkdir()
    copy_of(stage, half, ("images",))
    shutil.copytree(stage / "whole", half / "whole", ignore=shutil.ignore_patterns("plan.json", "report"))
    journal = sealed({"request": record["request"], "done": ["convert"]})
    (half / ".whole.plan.json").write_text(journal, encoding="utf-8")


def made(words: Words, folder: Path) -> None:
    """Run a command that must succeed."""
    outcome = run(words, folder, seconds=600)
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
    file = stage / ".tuned.passes" / "tune.pt"
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
