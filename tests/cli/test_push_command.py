"""`onespike push`."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Command


def test_a_card(cli: Command, run: Path) -> None:
    done = cli("push", run, "--license", "mit").good()
    assert "Not measured." in (run / "README.md").read_text()
    assert "onespike report RUN --data DIR" in done.err
    cli("inspect", run).good()


def test_figures_of_a_card(cli: Command, run: Path, tmp_path: Path) -> None:
    """They are those of the run's report, or of a file that `evaluate` wrote; any other file is refused."""
    file = tmp_path / "result.json"
    data = ("--data", "bundled:cifar10-test", "--limit", 4)
    cli("report", run, *data).good()
    cli("evaluate", run, *data, "--json", file).good()
    cards = []
    for given in ((), ("--json", file)):
        cli("push", run, "--license", "mit", *given).good()
        cards.append((run / "README.md").read_text())
    assert cards[0] == cards[1] and "| network | top-1 % | 95 % |" in cards[0]
    file.write_text('{"task": "classification"}')
    assert cli("push", run, "--license", "mit", "--json", file).message() == (
        f"{file}: the file is damaged (at ann: field required). Measure again: onespike evaluate RUN --data DIR --json FILE"
    )


def test_an_upload_that_fails(cli: Command, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the client of the Hub raises is one line; the run stays a run."""
    hub = pytest.importorskip("huggingface_hub")

    class Absent:
        def create_repo(self, *_: object, **__: object) -> None:
            raise ValueError("no answer\nat all")

    monkeypatch.setattr(hub, "HfApi", Absent)
    result = cli("push", run, "me/vit", "--license", "mit")
    assert 'from_pretrained("me/vit")' in (run / "README.md").read_text()
    assert result.code == 2 and result.err.splitlines()[-1] == (
        "onespike: me/vit: the run cannot be uploaded (no answer). "
        "Check the name, your token and the network connection, then push again."
    )
