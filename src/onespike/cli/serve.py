"""`onespike serve`: a run as a live page."""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.errors import UsageError


@command(
    "onespike serve run", "onespike serve run --address 8080 --device cuda", interrupted="the page is closed."
)
def serve(
    run: Path, *, address: str = "127.0.0.1:8765", profile: str | None = None, device: str = "cpu"
) -> Next:
    """Open a page on which a run answers.

    Drop an input on it to see both networks' answers, the spikes of every site, the energy, and
    the effect of another λ. Only this machine can reach it. Ctrl-C ends it.
    """
    from onespike.energy.profiles import profile as prices_of
    from onespike.reports.live import Session
    from onespike.reports.server import HERE, LiveServer
    from onespike.runs import load

    host, _, number = address.rpartition(":")
    host, port = host or "127.0.0.1", int(number) if number.isdecimal() else -1
    if not 0 <= port < 2**16:
        raise UsageError(f"--address ends in a port from 0 to 65535, not {number}.")
    pair = load(run, device=device)
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        LiveServer(Session(run, pair, prices_of(), folder), host, port) as server,
    ):
        if host not in HERE:
            output.note("warning: other machines can reach this page, and nothing asks them who they are")
        output.line(f"serving {run} at {server.url} (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            output.note("the page is closed")
    if (
        server.session.lock.locked()
    ):  # torch computes in another thread, where the interpreter cannot end in order
        atexit.register(os._exit, 0)
    return "report", run
