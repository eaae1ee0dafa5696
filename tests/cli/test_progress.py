"""A bar with the time left on a terminal, plain lines anywhere else."""

from __future__ import annotations

import os
import re
import sys

import pytest

from onespike.cli import progress


def test_plain_lines(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 10.0)
    clock = iter([0.0, 4.0, 12.0, 13.0, 20.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    assert list(progress.progress("calibrating", 4)("abcd")) == list("abcd")
    assert capsys.readouterr().err == "calibrating: 2/4, 12 s left\ncalibrating: 4/4, 0 s left\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals there")
def test_a_bar_on_a_terminal(monkeypatch):
    parent, child = os.openpty()
    with os.fdopen(child, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "100")
        assert list(progress.progress("evaluating", 3)("abc")) == list("abc")
        terminal.flush()
        shown = os.read(parent, 100_000).decode()
    os.close(parent)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert re.search(r"evaluating ━+ 3/3 0:00:00 0:00:00", plain)
