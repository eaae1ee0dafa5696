"""Every example and every notebook runs as it stands, top to bottom; notebooks are stored with their outputs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

from onespike.sites import RULES

ROOT = Path(__file__).parents[1]
# These take an exported file: the tests of its format run them.
READERS = {"replay_integers", "nir_readers", "hls4ml_simulation"}
EXAMPLES = sorted(p for p in (ROOT / "examples").glob("*.py") if p.stem not in READERS)
NOTEBOOKS = sorted(file.stem for file in (ROOT / "examples/notebooks").glob("*.ipynb"))
# The first asks for torchaudio, and so is in no extra.
NEEDS = {"neurobench_metric": "neurobench", "chip_digits": "norse", "language-model": "transformers"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example, capsys, tmp_path, monkeypatch):
    if example.stem in NEEDS:
        pytest.importorskip(NEEDS[example.stem])
    monkeypatch.chdir(tmp_path)  # what an example draws does not stay
    monkeypatch.setattr(sys, "argv", [str(example), "out"])
    before = dict(RULES)
    try:
        runpy.run_path(str(example), run_name="__main__")
    finally:
        RULES.clear()
        RULES.update(before)
    assert capsys.readouterr().out
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    verbs = runpy.run_path(str(ROOT / "docs/notebooks.py"))
    stored = verbs["read"](name)
    done = verbs["execute"](stored)
    kinds = [[o["output_type"] for o in cell.get("outputs", ())] for cell in done["cells"]]
    assert kinds == [[o["output_type"] for o in cell.get("outputs", ())] for cell in stored["cells"]]
    assert any(kinds) and stored["nbformat"] == 4
    assert f"{{{{ notebook: {name} }}}}" in (ROOT / "docs/notebooks.md").read_text("utf-8")
    assert verbs["as_markdown"](done).count("```python") == sum(
        c["cell_type"] == "code" for c in done["cells"]
    )
