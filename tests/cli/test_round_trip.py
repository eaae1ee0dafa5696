"""convert → evaluate → inspect → verify → list, on every kind of network."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from command_line import CONVERT, TEST, VIT, stored

from image_folders import noise
from onespike import runs
from onespike.adapters import load_model
from onespike.energy import COLUMNS
from onespike.recipe import Recipe
from onespike.runtime.atomic import sha256
from onespike.tasks import batches, list_images

ACCURACY = {"top1": float, "top5": float}
NUMBERS = ("agreement", "kl", "kl_standard_error", "difference", "standard_error", "original_pj", "scale")
SHARES = ("analog_share", "edge_share", "dead_share", "head_share")
BOUNDS = ("ann.top1", "ann.top5", "snn.top1", "snn.top5", "difference", "agreement", "kl")
WITHIN = {"energy_parts", "made", "versions"}
"""What is in them depends on the network and on the machine."""
SCHEMA = {
    "task": str,
    "profile": str,
    "images": int,
    "ann": ACCURACY,
    "snn": ACCURACY,
    **dict.fromkeys(NUMBERS + SHARES, float),
    "intervals": dict.fromkeys(BOUNDS, list),
    "energy": dict.fromkeys(COLUMNS, float),
    "seconds": {"ann": float, "snn": float},
    **dict.fromkeys(WITHIN, dict),
    "sites": list,
}


def types(record):
    return {k: types(v) if isinstance(v, dict) and k not in WITHIN else type(v) for k, v in record.items()}


def record(run: Path) -> dict:
    return stored(run / "run.json")


def digest(pair: runs.NetworkPair, images: Path) -> str:
    """The SHA-256 of both networks' logits."""
    inputs, _ = next(iter(batches(list_images(images), pair.loaded.reading.transform, 4)))
    sha = hashlib.sha256()
    with torch.inference_mode():
        for network in (pair.ann, pair.snn):
            output = network(inputs)
            sha.update(getattr(output, "logits", output).numpy().tobytes())
    return sha.hexdigest()


def test_convert_then_evaluate(cli, figures, tmp_path, vit_weights):
    run = tmp_path / "runs" / "run"
    options = "--scale 0.3 --set levels=4 --set percentile=2 --set neuron=sfn --set rounding=nearest"
    converted = cli(f"{CONVERT} --weights {vit_weights} --limit 4 --out {run} {options}").good()
    assert "51 of 53 spike; analog: patch_embed.backbone.0:conv0_input (input" in converted.out
    assert converted.out.endswith(f"\nwritten to     {run}\n")
    files = sorted(p.name for p in run.iterdir())
    assert files == ["run.json", "thresholds.safetensors", "weights.safetensors"]
    assert len({p.stat().st_mode for p in run.iterdir()}) == 1
    recipe = Recipe(scale=0.3, levels="4", percentile=2.0, rounding="nearest")
    assert record(run)["recipe"] == json.loads(json.dumps(recipe.to_dict()))

    evaluated, result = figures("evaluate", run, "--data", TEST, "--limit", 8, "--batch-size", 5)
    assert evaluated.out.splitlines()[:4] == converted.out.splitlines()[:4]
    assert types(result) == SCHEMA
    assert (result["images"], result["scale"]) == (8, pytest.approx(0.3))
    line = f"\nagreement {result['agreement']:.2f} % \\(.+\\), KL {result['kl']:.4f} nats.*, 8 images.*, λ = 0.3\n"
    assert re.search(line, evaluated.out), evaluated.out
    rows = [line.split() for line in evaluated.out.splitlines() if line.startswith(("original", "spiking"))]
    for row, network in zip(rows, ("ann", "snn"), strict=True):
        *_, top1, low, _, high, top5, _, _, _, _ = row
        assert [top1, top5] == [f"{result[network][name]:.2f}" for name in ("top1", "top5")]
        assert [float(low), float(high)] == [round(b, 1) for b in result["intervals"][f"{network}.top1"]]
    for column, ratio in result["energy"].items():
        without = ratio / (1 - result["dead_share"])
        assert re.search(rf"\n{column} +{ratio:.3f} +[\d.–]+ +{without:.3f}  ", evaluated.out)
        assert sum(result["energy_parts"][column].values()) == pytest.approx(ratio)
    assert f"; {100 * result['analog_share']:.1f} % of the MACs stay analog" in evaluated.out


def test_limit_is_evenly_spaced_and_recorded(cli, tmp_path, images):
    run = tmp_path / "run"
    cli(f"{CONVERT} --weights random --calibrate {images} --limit 4 --out {run}").good()
    assert record(run)["data"] == {
        "source": str(images),
        "names": ["0/0.png", "1/2.png", "2/5.png", "3/7.png"],
        "sha256": [sha256(images / name) for name in ("0/0.png", "1/2.png", "2/5.png", "3/7.png")],
    }
    evaluated = cli("evaluate", run, "--data", images, "--limit", 5)
    assert "note: 2 of these images were used for calibration, first 0/0.png" in evaluated.out
    assert "5 images" in evaluated.out


def test_without_labels_there_is_no_accuracy(figures, tmp_path, vit_run):
    for index in range(3):
        noise(tmp_path / "loose" / f"{index}.png", index)
    done, result = figures("evaluate", vit_run, "--data", tmp_path / "loose")
    none = {"top1": None, "top5": None}
    assert (result["ann"], result["snn"]) == (none, none)
    assert types(result) == {
        **SCHEMA,
        **types({"ann": none, "snn": none, "difference": None, "standard_error": None}),
        "intervals": {"agreement": list, "kl": list},
    }
    rows = [line.split() for line in done.out.splitlines() if line.startswith(("original", "spiking"))]
    assert [row[-3:-1] for row in rows] == [["–", "–"], ["–", "–"]]


def test_inspect_shows_recipe_and_sites(cli, vit_run):
    shown = cli("inspect", vit_run).good()
    lines = shown.out.splitlines()
    assert lines[3].startswith("recipe         preset=sformer, neuron=sfn, levels=mixed:8, ")
    sites = [line.split()[0] for line in lines[8:]]
    assert sites == sorted(record(vit_run)["sites"], key=sites.index)
    assert len(sites) == 53
    assert lines[8].split(maxsplit=1)[1].strip() == "analog: input of the network"
    assert any("sfn, θ+=" in line and "levels=1..8+8 tail up to 263" in line for line in lines)


def test_a_transformers_run_holds_its_configuration(cli, figures, tmp_path, images, transformers_folder):
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    source, run = shutil.copytree(transformers_folder, tmp_path / "source"), tmp_path / "run"
    spec = f"transformers:{source}"
    cli(f"convert {spec} --preset sformer --weights pretrained --calibrate {images} --out {run}").good()
    pair = runs.convert_network(load_model(spec, pretrained=True), list_images(images), Recipe())
    shutil.rmtree(source)  # the run stands on its own
    assert {p.name for p in (run / "network").iterdir()} == {"config.json", "preprocessor_config.json"}
    assert digest(runs.load(run), images) == digest(pair, images)
    again = AutoModelForImageClassification.from_pretrained(run)
    assert digest(dataclasses.replace(pair, snn=again), images) == digest(pair, images)
    assert AutoImageProcessor.from_pretrained(run).size == {"height": 32, "width": 32}
    evaluated, result = figures("evaluate", run, "--data", images)
    assert "note: 10 of these images were used for calibration, first 0/0.png\n" in evaluated.out
    assert f"\nnetwork        {spec} (pretrained weights)\n" in evaluated.out
    assert types(result) == SCHEMA
    (run / "network" / "config.json").write_text("{}")
    message = f"{run}: the run is damaged: network/config.json is not the file that was saved"
    assert cli("inspect", run).message().startswith(message)


def test_a_device_map_is_read_by_convert(cli, tmp_path, vit_weights, vit_run):
    """Weights of the blocks on disk give the same thresholds."""
    words = f"{CONVERT} --weights {vit_weights} --limit 4"
    network = load_model(VIT, random_weights=True).model
    parts = [
        *(n for n, _ in network.named_children()),
        *(n for n, _ in network.named_parameters(recurse=False)),
    ]
    (tmp_path / "map.json").write_text(json.dumps({p: "disk" if p == "blocks" else "cpu" for p in parts}))
    cli(words, "--device-map", tmp_path / "map.json", "--out", tmp_path / "run").good()
    assert sha256(tmp_path / "run" / "thresholds.safetensors") == sha256(vit_run / "thresholds.safetensors")
