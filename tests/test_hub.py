"""A run folder is a repository: written, uploaded to a folder that stands for the Hub, and loaded from there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import onespike
from onespike.adapters import load_model
from onespike.errors import LoadError
from onespike.recipe import Recipe
from onespike.runs import choose, choose_labeled, convert_network, evaluate_pair


class Folder:
    """A Hub that is a folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.private = root, None

    def create_repo(self, repository: str, *, private: bool, exist_ok: bool) -> str:
        self.private = private
        return str(self.root / repository)

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> None:
        shutil.copytree(folder_path, self.root / repo_id)


@pytest.fixture(scope="module")
def pair() -> Any:
    loaded = load_model("bundled:cifar10-vit", random_weights=True)
    return convert_network(loaded, choose("bundled:cifar10-calibration", 4), Recipe(scale=0.3))


def test_there_and_back(pair: Any, tmp_path: Path) -> None:
    folder = onespike.save(tmp_path / "run", pair)
    items = choose_labeled(pair.loaded, "bundled:cifar10-test", count=4)
    figures = json.loads(json.dumps(evaluate_pair(pair, items).to_dict()))
    hub = Folder(tmp_path)
    address = onespike.push_to_hub(folder, "me/vit", license="mit", evaluation=figures, api=hub)
    assert address == str(tmp_path / "me/vit") and hub.private is True
    with pytest.raises(LoadError, match=r"^me/nothing: neither a folder nor a repository .* connection\.$"):
        onespike.from_pretrained("me/nothing")
    again = onespike.from_pretrained(address)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(again.snn(x), pair.snn(x))
        assert torch.equal(onespike.load(folder).snn(x), pair.snn(x))
    text = (tmp_path / "me/vit/README.md").read_text()
    head = text.split("---")[1]
    assert 'license: "mit"' in head and 'library_name: "onespike"' in head
    rows = ("| network | top-1 % | 95 % |", "% (95 %: ", "; difference ", "| **counts** | ")
    for words in (*rows, 'onespike.from_pretrained("me/vit")', "scale: 0.3", "@article{chen2025"):
        assert words in text, words
    assert "OWNER/NAME" not in text
    assert text.count(" to ") >= 6  # four figures, agreement, KL and difference have intervals
    assert f"{figures['energy']['counts']:.3f}" in text and "thresholds from 4 unlabeled inputs" in text
    assert json.loads((tmp_path / "me/vit/config.json").read_text())["network"] == "bundled:cifar10-vit"
