"""Every notebook runs from top to bottom, and is kept with its outputs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = sorted(file.stem for file in (ROOT / "examples/notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def notebooks():
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs/notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_it_runs(notebooks, name):
    if name == "language-model":
        pytest.importorskip("transformers")
    kept = notebooks.read(name)
    done = notebooks.execute(kept)
    kinds = [[o["output_type"] for o in cell.get("outputs", ())] for cell in done["cells"]]
    assert kinds == [[o["output_type"] for o in cell.get("outputs", ())] for cell in kept["cells"]]
    assert any(kinds) and kept["nbformat"] == 4
    assert (ROOT / f"docs/notebook-{name}.md").is_file()
    assert notebooks.as_markdown(done).count("```python") == sum(
        c["cell_type"] == "code" for c in done["cells"]
    )
