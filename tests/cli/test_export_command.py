"""`onespike export`."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import Command


def test_a_run_becomes_a_program(cli: Command, small_run: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "vit.pt2"
    done = cli(f"export {small_run} --format pt2 --out {out} --data {images} --limit 2 --batch-size 2").good()
    assert "0 differ" in done.out and "answers        0 of 2 differ" in done.out
    stored = json.loads((tmp_path / "vit.pt2.verified.json").read_text())
    assert stored["comparison"]["inputs"] == 2 and stored["comparison"]["differ"] == 0
    assert stored["network"].startswith("transformers:") and stored["scale"] == 0.25
    assert "torch" in stored["versions"] and stored["preprocessing"].startswith("resize 32×32")
