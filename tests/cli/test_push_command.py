"""`onespike push`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import Command


def test_a_card_and_refusals(cli: Command, vit_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(vit_run, run)
    assert cli("push", run, "me/vit").message() == (
        "a card names the license of the original network. Give it with --license NAME."
    )
    assert not (run / "README.md").exists()
    done = cli("push", run, "--license", "mit")
    assert done.code == 0, done.err
    assert "Not measured." in (run / "README.md").read_text()
    assert "onespike report RUN --data DIR" in done.err
    assert cli("inspect", run).code == 0  # it is a run still


def test_figures_of_a_card(cli: Command, vit_run: Path, tmp_path: Path) -> None:
    """They are those of the run's report, or of a file that `evaluate` wrote; any other file is refused."""
    run, file = tmp_path / "run", tmp_path / "result.json"
    shutil.copytree(vit_run, run)
    data = ("--data", "bundled:cifar10-test", "--limit", 4)
    assert cli("report", run, *data).code == 0
    assert cli("evaluate", run, *data, "--json", file).code == 0
    cards = []
    for given in ((), ("--json", file)):
        assert cli("push", run, "--license", "mit", *given).code == 0
        cards.append((run / "README.md").read_text())
    assert cards[0] == cards[1] and "| network | top-1 % | 95 % |" in cards[0]
    file.write_text('{"task": "classification"}')
    assert cli("push", run, "--license", "mit", "--json", file).message() == (
        f"{file}: the file is damaged (at ann: field required). Measure again: onespike evaluate RUN --data DIR --json FILE"
    )


def test_an_upload_that_fails(
    cli: Command, vit_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the client of the Hub raises is one line; the run stays a run."""
    hub = pytest.importorskip("huggingface_hub")

    class Absent:
        def create_repo(self, *_: object, **__: object) -> None:
            raise ValueError("no answer\nat all")

    monkeypatch.setattr(hub, "HfApi", Absent)
    shutil.copytree(vit_run, tmp_path / "run")
    result = cli("push", tmp_path / "run", "me/vit", "--license", "mit")
    assert 'from_pretrained("me/vit")' in (tmp_path / "run" / "README.md").read_text()
    assert result.code == 2 and result.err.splitlines()[-1] == (
        "onespike: me/vit: the run cannot be uploaded (no answer). "
        "Check the name, your token and the network connection, then push again."
    )
