"""The fault campaign of `benchmarks/faults` in small, and that it finds what it looks for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

CAMPAIGN = Path(__file__).parents[1] / "benchmarks" / "faults"


@pytest.fixture
def damaged(monkeypatch):
    """A module of the campaign; they stand beside each other and not in a package."""
    monkeypatch.syspath_prepend(str(CAMPAIGN))
    import damaged

    yield damaged
    for name in ("commands", "damaged", "mutate", "stage"):
        sys.modules.pop(name, None)


def test_a_small_campaign_finds_no_fault(tmp_path):
    words = ["--brief", "--kills", "1", "--mutations", "14", "--seed", "7", "--json", "faults.json"]
    done = subprocess.run(
        [sys.executable, str(CAMPAIGN), *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "faults.json").read_text(encoding="utf-8"))
    assert found["cases"] == {"checkpoints": 1, "images": 1, "kills": 1, "records": 3, "tensors": 2}
    assert set(found["faults"].values()) == {0}
    assert [path.name for path in tmp_path.iterdir()] == ["faults.json"]


@pytest.mark.parametrize(("ended", "kinds"), [
    ((0, "right", ""), []),
    ((2, "", "onespike: the file is damaged. Fetch it again.\n"), []),
    ((0, "wrong", ""), ["corrupt"]),
    ((2, "", "something else\n"), ["unclear"]),
    ((2, "", "Traceback (most recent call last)\nonespike: no\n"), ["traceback"]),
    ((-11, "", ""), ["crash"]),
    ((None, "", ""), ["hang"]),
])  # fmt: skip
def test_how_a_command_ends_is_judged(damaged, monkeypatch, tmp_path, ended, kinds):
    words = ("inspect", "run")
    (tmp_path / "stage" / "run").mkdir(parents=True)
    (tmp_path / "stage" / "run" / "run.json").write_text("{}", encoding="utf-8")
    (folder := tmp_path / "case").mkdir()
    monkeypatch.setattr(damaged, "run", lambda *_: sys.modules["commands"].Outcome(*ended, 0.0))
    monkeypatch.setitem(damaged.WHOLE, words, "right")
    _, faults = damaged.case(tmp_path / "stage", folder, "records", 0, Random(0))
    assert [fault.kind for fault in faults] == kinds
