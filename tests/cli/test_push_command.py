"""`onespike push`."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Command


def test_a_card_has_the_figures_of_the_run_s_report(cli: Command, run: Path) -> None:
    done = cli("push", run, "--license", "mit").good()
    assert "Not measured." in (run / "README.md").read_text()
    assert "onespike report RUN --data DIR" in done.err
    cli("report", run, "--data", "bundled:cifar10-test", "--limit", 4).good()
    cli("push", run, "--license", "mit").good()
    assert "| network | top-1 % | 95 % |" in (run / "README.md").read_text()


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
