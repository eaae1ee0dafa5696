"""Every block of code and every doctest of README and documentation runs."""

from __future__ import annotations

import doctest
import json
import re
from typing import Any

import pytest
import torch
from pages import PAGES, blocks
from stand_ins import made, small_detector
from torch import nn

import onespike
from onespike import tasks
from onespike.presets import DEFAULT, PRESETS, Preset

CODE = {page: [text for text in blocks(page, "python") if ">>>" not in text] for page in PAGES}
DOCTESTS = {page: [text for text in blocks(page, "python", "pycon") if ">>>" in text] for page in PAGES}


def given(page: str) -> dict[str, Any]:
    """What a page takes for granted before its code begins."""
    if page == "detection":
        from torchvision.transforms.functional import to_tensor

        return {"model": small_detector(), "transform": to_tensor}
    if page == "export":
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        inputs = torch.randn(16, 4)
        snn = onespike.convert(model, onespike.calibrate(model, [inputs]))
        return {"onespike": onespike, "snn": snn, "batches": [inputs[:8], inputs[8:]]}
    if page == "design":
        from onespike.sites import Operand, Visitor, visiting

        return {"Operand": Operand, "Tensor": torch.Tensor, "visiting": visiting, "visitor": Visitor(),
                "model": nn.Linear(2, 2)}  # fmt: skip
    return {}


@pytest.mark.parametrize("page", [page for page in PAGES if CODE[page]], ids=lambda page: page.stem)
def test_python_runs(page, tmp_path, monkeypatch, capsys):
    """As it stands: of bundled images it gets a few, and the default preset has one pass in place of many."""
    monkeypatch.chdir(made(tmp_path) if page.stem in ("detection", "scale") else tmp_path)
    every = tasks.list_images
    monkeypatch.setattr(tasks, "list_images", lambda name: tasks.limit(every(name), 8))
    one_pass = Preset("one pass", settings={"passes": ("nearest",), "budget": 0.2, "energy": "binary"})
    monkeypatch.setitem(PRESETS, DEFAULT, one_pass)
    for program in CODE[page]:
        exec(compile(program, page.name, "exec"), given(page.stem))
    printed = capsys.readouterr().out.strip()
    if page.name == "README.md":
        [shown] = re.findall(
            r"^```python\n.*?^```\n\n```\n(.*?)\n```", page.read_text(), re.DOTALL | re.MULTILINE
        )
        assert re.sub(r"[\d.]+", "0", printed) == re.sub(r"[\d.]+", "0", shown)


@pytest.mark.parametrize("page", [page for page in DOCTESTS if DOCTESTS[page]], ids=lambda page: page.stem)
def test_examples_run(page):
    test = doctest.DocTestParser().get_doctest("\n".join(DOCTESTS[page]), {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    runner.run(test, out=said.append)
    assert not runner.summarize(verbose=False).failed, "".join(said)


def test_recipes_and_profiles_can_be_read(tmp_path):
    from onespike.energy import profile
    from onespike.runs.recipe_text import read_recipe

    recipes = [text for page in PAGES for text in blocks(page, "yaml")]
    profiles = [text for page in PAGES for text in blocks(page, "json")]
    assert recipes and profiles
    for text in recipes:
        file = tmp_path / "recipe.yaml"
        file.write_text(text)
        assert read_recipe(file)
    for text in profiles:
        file = tmp_path / "profile.json"
        file.write_text(text)
        assert profile(str(file)).name == json.loads(text)["name"]
