"""Passes on the command line: a stored run gives the same logits, mistakes exit with 2, and ablate measures them."""

from __future__ import annotations

import json

import pytest
import torch
from command_line import CALIBRATION, TEST, VIT
from torch import nn

from onespike import runs, spike
from onespike.adapters import load_model
from onespike.errors import UsageError
from onespike.recipe import preset
from onespike.tasks import limit, list_images

ALL = ("nearest", "layout", "positions", "center", "allocate")


@pytest.fixture(scope="module")
def few():
    """Calibrated on as few images as an ablation needs."""
    return runs.convert_network(load_model(VIT), limit(list_images(CALIBRATION), 8), preset("sformer"))


@pytest.fixture(scope="module")
def pair():
    items = limit(list_images(CALIBRATION), 48)
    recipe = preset("sformer", passes=(*ALL, "correct", "refit"), budget=0.2)
    return runs.convert_network(load_model(VIT), items, recipe, batch_size=32)


def test_a_loaded_run_gives_the_same_logits_to_the_bit(pair, tmp_path):
    runs.save(tmp_path / "run", pair)
    loaded = runs.load(tmp_path / "run")
    x, _ = next(pair.loaded.batches(limit(list_images(TEST), 8), 8))
    with torch.inference_mode():
        assert torch.equal(pair.snn(x), loaded.snn(x))
    assert loaded.recipe.passes == (*ALL, "correct", "refit") and loaded.recipe.budget == 0.2


def test_a_trained_network_loses_less_at_equal_energy(pair):
    """Both at their counts on the same test images; the literal method spends more, and is further off."""
    items = limit(list_images(TEST), 100)
    better = runs.evaluate_pair(pair, items, batch_size=50).to_dict()
    plain = runs.convert_network(
        load_model(VIT), limit(list_images(CALIBRATION), 48), preset("sformer", scale=0.3), batch_size=32
    )
    literal = runs.evaluate_pair(plain, items, batch_size=50).to_dict()
    assert better["energy"]["counts"] < literal["energy"]["counts"]
    assert better["kl"] < 0.7 * literal["kl"]
    assert better["snn"]["top1"] >= literal["snn"]["top1"]


def test_ablate_measures_each_choice_once_and_resumes(cli, tmp_path, few, monkeypatch):
    runs.save(tmp_path / "run", few)
    words = ("doctor", tmp_path / "run", "--data", TEST, "--limit", 8, "--passes", "nearest,center",
             "--budget", "0.3", "--json", tmp_path / "rows.json")  # fmt: skip
    found = cli(*words).good()
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["what"] for row in rows] == ["none", "nearest alone", "center alone", "all"]
    counts = [row["energy"]["counts"] for row in rows]
    assert max(counts) / min(counts) < 1.1
    kept = (tmp_path / "run" / "ablation" / "ablation.json").read_bytes()
    again = cli(*words)
    assert again.out == found.out and (tmp_path / "run" / "ablation" / "ablation.json").read_bytes() == kept
    other = cli(*words[:5], 4, *words[6:])  # other images: both ablations are kept
    assert other.code == 0 and other.out != found.out
    with monkeypatch.context() as patch:
        patch.setattr("onespike.runs.evaluate_pair", lambda *_, **__: pytest.fail("measured a second time"))
        assert cli(*words).out == found.out
        assert cli(*words[:5], 4, *words[6:]).out == other.out
    (tmp_path / "run" / "ablation" / "ablation.json").write_text("{")
    message = cli(*words).message()
    assert message.endswith(
        "ablation.json: the file is damaged (invalid JSON: EOF while parsing an object at line 1 column 1). "
        "Remove it to measure again."
    )


def test_ablate_takes_as_few_images_as_convert(cli, tmp_path, transformers_folder, images):
    """One batch of calibration images is parted there, too, for passes that judge by others."""
    loaded = load_model(f"transformers:{transformers_folder}", pretrained=True)
    recipe = preset("sformer", passes=("nearest", "allocate", "weigh"), budget=0.2)
    pair = runs.convert_network(loaded, limit(list_images(CALIBRATION), 6), recipe)
    runs.save(tmp_path / "run", pair)
    found = cli("doctor", tmp_path / "run", "--data", images, "--limit", 4, "--passes", "run")
    assert found.code == 0 and "weigh alone" in found.out, found.err


def test_ablate_and_convert_refuse_the_same_passes(cli, tmp_path):
    items = limit(list_images(CALIBRATION), 2)
    words = ("--data", TEST, "--limit", 2, "--passes")
    for options, passes, message in (
        ({"steps": 2}, "nearest", "passes are for one timestep and neurons at synapses."),
        (
            {"neuron": "mtn"},
            "nearest,center",
            "the neuron 'mtn' codes no centers, offsets or gains, which the passes",
        ),
    ):
        run = tmp_path / "-".join(options)
        runs.save(run, runs.convert_network(load_model(VIT), items, preset("sformer", **options)))
        assert cli("doctor", run, *words, passes).message().startswith(message)
        with pytest.raises(UsageError, match=f"^{message}"):
            spike(nn.Linear(2, 2), [torch.ones(4, 2)], "sformer", passes=passes, **options)
