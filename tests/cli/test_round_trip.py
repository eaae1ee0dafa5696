"""convert → evaluate → inspect → verify → list, on every kind of network."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from command_line import CONVERT, TEST, VIT

from image_folders import noise
from onespike import runs
from onespike.adapters import load_model
from onespike.energy import COLUMNS
from onespike.recipe import Recipe
from onespike.runtime.atomic import sha256
from onespike.tasks import batches, list_images

ACCURACY = {"top1": float, "top5": float}
SCHEMA = {
    "task": str,
    "ann": ACCURACY,
    "snn": ACCURACY,
    "agreement": float,
    "kl": float,
    "kl_standard_error": float,
    "difference": float,
    "standard_error": float,
    "intervals": dict.fromkeys(
        ("ann.top1", "ann.top5", "snn.top1", "snn.top5", "difference", "agreement", "kl"), list
    ),
    "energy": dict.fromkeys(COLUMNS, float),
    "energy_parts": dict,  # what each column is paid for depends on the network
    "profile": str,
    "analog_share": float,
    "edge_share": float,
    "dead_share": float,
    "head_share": float,
    "original_pj": float,
    "images": int,
    "scale": float,
    "seconds": {"ann": float, "snn": float},
}


def types(record):
    return {
        k: types(v) if isinstance(v, dict) and k != "energy_parts" else type(v) for k, v in record.items()
    }


def figures_of(file: Path) -> dict:
    """The figures that a command wrote, without how they were made."""
    written = json.loads(file.read_text())
    assert written.pop("made")["command"].startswith("onespike ") and written.pop("versions")["onespike"]
    return written


def record(run: Path) -> dict:
    return json.loads((run / "run.json").read_text())


def digest(pair: runs.NetworkPair, images: Path) -> str:
    """The SHA-256 of both networks' logits."""
    inputs, _ = next(iter(batches(list_images(images), pair.loaded.reading.transform, 4)))
    sha = hashlib.sha256()
    with torch.inference_mode():
        for network in (pair.ann, pair.snn):
            output = network(inputs)
            sha.update(getattr(output, "logits", output).numpy().tobytes())
    return sha.hexdigest()


def test_convert_then_evaluate(cli, tmp_path, vit_weights):
    run, file = tmp_path / "runs" / "run", tmp_path / "result.json"
    options = "--scale 0.3 --set levels=4 --set percentile=2 --set neuron=sfn --set rounding=nearest"
    converted = cli(f"{CONVERT} --weights {vit_weights} --limit 4 --out {run} {options}").good()
    assert (
        "\nsites          51 of 53 spike; analog: patch_embed.backbone.0:conv0_input (input" in converted.out
    )
    assert converted.out.endswith(f"\nwritten to     {run}\n")
    files = sorted(p.name for p in run.iterdir())
    assert files == ["run.json", "thresholds.safetensors", "weights.safetensors"]
    assert len({p.stat().st_mode for p in run.iterdir()}) == 1
    recipe = Recipe(scale=0.3, levels="4", percentile=2.0, rounding="nearest")
    assert record(run)["recipe"] == json.loads(json.dumps(recipe.to_dict()))

    evaluated = cli("evaluate", run, "--data", TEST, "--limit", 8, "--batch-size", 5, "--json", file).good()
    assert evaluated.out.splitlines()[:4] == converted.out.splitlines()[:4]
    figures = figures_of(file)
    assert types(figures) == SCHEMA
    assert (figures["images"], figures["scale"]) == (8, pytest.approx(0.3))
    found = f"\nagreement {figures['agreement']:.2f} % \\(.+\\), KL {figures['kl']:.4f} nats.*, 8 images.*, λ = 0.3\n"
    assert re.search(found, evaluated.out), evaluated.out
    rows = [line.split() for line in evaluated.out.splitlines() if line.startswith(("original", "spiking"))]
    for row, network in zip(rows, ("ann", "snn"), strict=True):
        *_, top1, low, _, high, top5, _, _, _, _ = row
        assert [top1, top5] == [f"{figures[network][name]:.2f}" for name in ("top1", "top5")]
        assert [float(low), float(high)] == [round(b, 1) for b in figures["intervals"][f"{network}.top1"]]
    for column, ratio in figures["energy"].items():
        without = ratio / (1 - figures["dead_share"])
        assert re.search(rf"\n{column} +{ratio:.3f} +[\d.–]+ +{without:.3f}  ", evaluated.out)
        assert sum(figures["energy_parts"][column].values()) == pytest.approx(ratio)
    assert f"; {100 * figures['analog_share']:.1f} % of the MACs stay analog" in evaluated.out


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


def test_without_labels_there_is_no_accuracy(cli, tmp_path, vit_run):
    for index in range(3):
        noise(tmp_path / "loose" / f"{index}.png", index)
    file = tmp_path / "result.json"
    done = cli("evaluate", vit_run, "--data", tmp_path / "loose", "--json", file).good()
    figures = figures_of(file)
    none = {"top1": None, "top5": None}
    assert (figures["ann"], figures["snn"]) == (none, none)
    assert types(figures) == {
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


@pytest.mark.parametrize("name", ["timm:test_resnet", "torchvision:squeezenet1_1"])
def test_other_libraries(cli, tmp_path, images, name):
    run, file = tmp_path / "run", tmp_path / "result.json"
    done = cli(
        f"convert {name} --preset sformer --weights random --calibrate {images} --limit 2 --out {run}"
    ).good()
    assert f"network        {name} (random weights)\n" in done.out
    cli("evaluate", run, "--data", images, "--limit", 2, "--json", file).good()
    assert types(figures_of(file)) == SCHEMA


def test_a_transformers_run_holds_its_configuration(cli, tmp_path, images, transformers_folder):
    source = tmp_path / "source"
    shutil.copytree(transformers_folder, source)
    run, file = tmp_path / "run", tmp_path / "result.json"
    spec = f"transformers:{source}"
    cli(f"convert {spec} --preset sformer --weights pretrained --calibrate {images} --out {run}").good()
    pair = runs.convert_network(load_model(spec, pretrained=True), list_images(images), Recipe())
    shutil.rmtree(source)  # the run stands on its own
    assert {p.name for p in (run / "network").iterdir()} == {"config.json", "preprocessor_config.json"}
    assert digest(runs.load(run), images) == digest(pair, images)
    evaluated = cli("evaluate", run, "--data", images, "--json", file)
    assert "note: 10 of these images were used for calibration, first 0/0.png\n" in evaluated.out
    assert f"\nnetwork        {spec} (pretrained weights)\n" in evaluated.out
    assert types(figures_of(file)) == SCHEMA
    (run / "network" / "config.json").write_text("{}")
    assert cli("inspect", run).message() == (
        f"{run}: the run is damaged: network/config.json is not the file that was saved (its SHA-256 differs). "
        "Convert the network again."
    )


@pytest.mark.parametrize("kind", ["bundled", "transformers"])
def test_referenced_weights(cli, tmp_path, images, vit_weights, transformers_folder, kind):
    place = tmp_path / "place"
    weights = place / "checkpoints" / ("w.pth" if kind == "bundled" else "w.safetensors")
    weights.parent.mkdir(parents=True)
    shutil.copy(vit_weights if kind == "bundled" else transformers_folder / "model.safetensors", weights)
    spec = VIT if kind == "bundled" else f"transformers:{transformers_folder}"
    run = place / "runs" / "run"
    words = f"convert {spec} --preset sformer --weights {weights} --reference-weights --limit 4 --calibrate"
    cli(f"{words} {images} --out {run}").good()
    relative = f"../../checkpoints/{weights.name}"
    assert record(run)["network"]["weights_file"] == relative
    assert record(run)["files"][relative] == sha256(weights)
    assert not (run / "weights.safetensors").exists()
    loaded = load_model(spec, weights=weights)
    items = runs.choose(str(images), 4)
    expected = digest(runs.convert_network(loaded, items, Recipe()), images)
    assert digest(runs.load(run), images) == expected

    moved = tmp_path / "moved"
    place.rename(moved)  # run and checkpoint together
    run, weights = moved / "runs" / "run", moved / "checkpoints" / weights.name
    assert digest(runs.load(run), images) == expected

    start = f"{run}: the checkpoint {run / relative}, to which the run refers, "
    end = ". Put it back, or convert the network again."
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert cli("evaluate", run, "--data", images).message() == (
        f"{start}is not the file that was saved (its SHA-256 differs){end}"
    )
    weights.unlink()
    assert cli("inspect", run).message() == f"{start}is missing{end}"


def test_a_device_map_is_read_by_convert_and_evaluate(cli, tmp_path, vit_weights, vit_run):
    """Weights of the blocks on disk: the same thresholds, and a map that is none is refused."""
    words = f"{CONVERT} --weights {vit_weights} --limit 4"
    network = load_model(VIT, random_weights=True).model
    parts = [
        *(n for n, _ in network.named_children()),
        *(n for n, _ in network.named_parameters(recurse=False)),
    ]
    (tmp_path / "map.json").write_text(json.dumps({p: "disk" if p == "blocks" else "cpu" for p in parts}))
    cli(words, "--device-map", tmp_path / "map.json", "--out", tmp_path / "run").good()
    assert sha256(tmp_path / "run" / "thresholds.safetensors") == sha256(vit_run / "thresholds.safetensors")
    message = cli(words, "--out", tmp_path / "other", "--device-map", "nowhere").message()
    assert message.startswith("device map 'nowhere': neither a strategy")
