"""`onespike push`."""

from __future__ import annotations

import shutil
from pathlib import Path

from command_line import Command


def test_a_card_and_refusals(cli: Command, vit_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(vit_run, run)
    assert cli("push", run, "me/vit").message() == (
        "a card names the license of the original network. Give it with --license NAME."
    )
    assert cli("push", run, "--license", "mit").message() == (
        "give a repository OWNER/NAME to upload to, or --card-only to upload nothing."
    )
    assert not (run / "README.md").exists()
    done = cli("push", run, "--license", "mit", "--card-only")
    assert done.code == 0, done.err
    assert "Not measured." in (run / "README.md").read_text()
    assert cli("inspect", run).code == 0  # it is a run still
