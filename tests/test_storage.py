"""The format of a run: what is written, that old runs stay readable, and that damage is found."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from comparisons import same_thresholds
from onespike.adapters import load_checkpoint_
from onespike.calibration.thresholds import SiteThreshold, Thresholds
from onespike.recipe import Recipe
from onespike.runs import storage
from onespike.sites import Site

GOLDEN = Path(__file__).parent / "golden" / "run"
"""Written by `python tests/test_storage.py`, which a change of the version number calls for."""


def model() -> nn.Module:
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    for parameter in network.parameters():
        parameter.data = torch.arange(parameter.numel()).float().view_as(parameter) / 4
    network[2].tied = network[0].weight  # stored under both names
    return network


def thresholds() -> Thresholds:
    rows = (
        ("0:linear0_input", "input", 1.5, 0.5, 2.0, 4.0),
        ("2:linear0_input", "activation", [0.25, 0.75], [0.0, 0.0], 1.0, 2.0),
    )
    entries = {}
    for site, role, *sides, largest, macs in rows:
        facts = (role, *map(torch.tensor, sides), (1, 2, 4), largest, (8, 2), 1.0, macs)
        entries[Site.parse(site)] = SiteThreshold(Site.parse(site), *facts)
    provenance = {"model": "Sequential", "samples": 8}
    return Thresholds(entries, {("1", "einsum"): 3.0}, {"conv": "norm"}, provenance)


def save(folder: Path) -> None:
    def configuration(place: Path) -> None:
        place.mkdir()
        (place / "config.json").write_text("{}\n")

    storage.save(
        folder,
        model=model(),
        network={"spec": "test:λ", "weights": "random", "attention": None},
        recipe=Recipe(levels="1,2,4", exclude=("1:einsum*",)),
        thresholds=thresholds(),
        data={"source": "images", "names": ["a.png"], "sha256": ["0" * 64]},
        configuration=configuration,
    )


def lists(tensors: dict[str, torch.Tensor]) -> dict[str, list]:
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def same(a: Thresholds, b: Thresholds) -> None:
    assert (a.uncovered, a.folds, a.provenance) == (b.uncovered, b.folds, b.provenance)
    same_thresholds(a, b)


def test_the_record_is_the_golden_one(tmp_path):
    save(tmp_path / "run")
    hashes = re.compile(r'"[0-9a-f]{64}"')  # of files whose bytes are safetensors' business
    ours, golden = ((f / "run.json").read_text(encoding="utf-8") for f in (tmp_path / "run", GOLDEN))
    assert hashes.sub('"…"', ours) == hashes.sub('"…"', golden)
    names = [sorted(p.relative_to(f).as_posix() for p in f.rglob("*")) for f in (tmp_path / "run", GOLDEN)]
    assert names[0] == names[1]


def test_the_golden_run_is_read():
    run = storage.load(GOLDEN)
    same(run.thresholds, thresholds())
    assert run.recipe == Recipe(levels="1,2,4", exclude=("1:einsum*",))
    assert run.network == {
        "spec": "test:λ", "weights": "random", "attention": None, "weights_file": "weights.safetensors",
    }  # fmt: skip
    assert run.data == {"source": "images", "names": ["a.png"], "sha256": ["0" * 64]}
    weights = load_file(GOLDEN / storage.WEIGHTS)
    assert lists(weights) == lists(model().state_dict()) and "2.tied" in weights


def test_a_tied_tensor_is_stored_once_and_loaded_tied(tmp_path):
    """The golden run, of an earlier version, has it twice; both are read alike, also by a network that does not tie."""
    save(tmp_path / "run")
    for folder in (tmp_path / "run", GOLDEN):
        network, untied = model(), model()
        untied[2].tied = nn.Parameter(torch.zeros(2, 2))
        for parameter in (*network.parameters(), *untied.parameters()):
            nn.init.zeros_(parameter)
        for each in (network, untied):
            load_checkpoint_(each, folder / "weights.safetensors")
            assert lists(each.state_dict()) == lists(model().state_dict())
        assert network[2].tied is network[0].weight
    assert sorted(load_file(tmp_path / "run" / "weights.safetensors")) == ["0.weight", "2.weight"]


def test_a_language_model_is_half_as_large_and_answers_alike(tmp_path):
    """Its input and output embeddings are one; in memory and in blocks."""
    pytest.importorskip("transformers")
    from language_folders import llama, sentence
    from onespike import runs
    from onespike.adapters import load_model

    llama(tmp_path / "llama", vocab_size=512)
    (tmp_path / "text.txt").write_text(sentence(0, 64))
    loaded = load_model(f"transformers:{tmp_path / 'llama'}", pretrained=True).with_length(16)
    items = runs.choose(str(tmp_path / "text.txt"), 2, loaded.task)
    pair = runs.convert_network(loaded, items, Recipe(), batch_size=2)
    runs.save(tmp_path / "run", pair)
    size = sum(p.numel() * p.itemsize for p in pair.ann.parameters())
    assert (tmp_path / "run" / "weights.safetensors").stat().st_size < 1.05 * size + 4096
    again, ids = runs.load(tmp_path / "run"), torch.arange(4, 20)[None]
    assert again.ann.lm_head.weight is again.ann.model.embed_tokens.weight
    with torch.inference_mode():
        assert torch.equal(again.snn(ids).logits, pair.snn(ids).logits)
        blocks = runs.load(tmp_path / "run", device_map="blocks")
        assert torch.equal(blocks.snn(ids).logits, pair.snn(ids).logits)
    runs.save(tmp_path / "copy", blocks)
    assert torch.equal(runs.load(tmp_path / "copy").ann(ids).logits, pair.ann(ids).logits)
    sizes = [(tmp_path / run / "weights.safetensors").stat().st_size for run in ("run", "copy")]
    assert sizes[0] == pytest.approx(sizes[1], abs=512)


def test_layout_of_the_record_and_files_beside_it_do_not_matter(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "run")
    file = tmp_path / "run" / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()), sort_keys=True))
    (tmp_path / "run" / "notes.txt").write_text("mine")
    same(storage.load(tmp_path / "run").thresholds, thresholds())


@pytest.mark.parametrize(
    "name", ["thresholds.safetensors", "weights.safetensors", "network/config.json", "run.json"]
)
def test_no_change_of_a_byte_goes_unseen(tmp_path, name):
    """Every byte of every file, run.json's layout apart."""
    shutil.copytree(GOLDEN, tmp_path / "run")
    file = tmp_path / "run" / name
    whole = file.read_bytes()
    for index in range(0, len(whole), 1 if len(whole) < 500 else 7):
        if whole[index : index + 1].isspace():
            continue
        file.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        with pytest.raises(storage.LoadError, match="Convert the network again"):
            storage.load(tmp_path / "run")


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    save(GOLDEN)
