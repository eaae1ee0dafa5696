"""Every example runs as it stands, top to bottom."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from onespike.sites import RULES

# The replay takes a folder: tests/exports/test_integers.py runs it.
EXAMPLES = sorted(
    p for p in (Path(__file__).parents[1] / "examples").glob("*.py") if p.stem != "replay_integers"
)
SAYS = {
    "timm_vit": "sites spike, relative error",
    "resnet": "λ = 0.1",
    "hugging_face": "transformer.h.0.attn",
    "custom_model": "are not covered",
    "own_metric": "overconfidence: original",
    "detector": "masks: AP ",
    "neurobench_metric": "additions, counts",
}
NEEDS = {"neurobench_metric": "neurobench"}  # asks for torchaudio, and so is in no extra


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example, capsys, tmp_path, monkeypatch):
    if example.stem in NEEDS:
        pytest.importorskip(NEEDS[example.stem])
    monkeypatch.chdir(tmp_path)  # what an example draws does not stay
    before = dict(RULES)
    try:
        runpy.run_path(str(example), run_name="__main__")
    finally:
        RULES.clear()
        RULES.update(before)
    assert SAYS.get(example.stem, "") in capsys.readouterr().out
    assert torch.is_grad_enabled()
