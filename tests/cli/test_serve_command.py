"""`onespike serve` as a process: Ctrl-C ends it, whatever it is doing."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest


def ask_on_and_on(port: int, answered: threading.Event) -> None:
    """One question after another, until nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        while True:
            connection.request("POST", "/answer?sample=0&scale=0.5", b"", {"X-Onespike": "live"})
            connection.getresponse().read()
            answered.set()
    except (OSError, http.client.HTTPException):
        connection.close()


@pytest.mark.processes
def test_it_ends_while_requests_run(vit_run: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "onespike", "serve", str(vit_run), "--address", "0"]
    settings = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        words, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # a job in the background ignores the signal, and so would its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as page:  # fmt: skip
        assert page.stdout is not None and page.stderr is not None
        port = int(page.stdout.readline().partition("127.0.0.1:")[2].partition("/")[0])
        answered = threading.Event()
        clients = [threading.Thread(target=ask_on_and_on, args=(port, answered)) for _ in range(3)]
        for client in clients:
            client.start()
        assert answered.wait(60)
        page.send_signal(signal.SIGINT)
        code = page.wait(60)  # it takes a third of a second where nothing else runs
        for client in clients:
            client.join()
        said = page.stderr.read()
    assert (code, said) == (0, f"the page is closed\nnext: onespike report {vit_run}\n")
    assert not list(tmp_path.iterdir())
