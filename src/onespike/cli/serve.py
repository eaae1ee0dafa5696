"""`onespike serve`: a run as a live page."""

from __future__ import annotations

import atexit
import os
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Device, Prices, RunFolder
from onespike.errors import UsageError


@command(
    "onespike serve run", "onespike serve run --port 8080 --device cuda", interrupted="the page is closed."
)
def serve(
    run: RunFolder,
    port: Annotated[int, typer.Option(metavar="N", help="The port to listen on; 0 for any free one.")] = 8765,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="The address to listen on; with another one, other machines can reach the page.",
        ),
    ] = "127.0.0.1",
    profile: Prices = None,
    device: Device = "cpu",
) -> Next:
    """Open a page on which a run answers.

    Drop an input on it to see both networks' answers, the spikes of every site, the energy, and
    the effect of another λ. Only this machine can reach it. Ctrl-C ends it.
    """
    from onespike.energy.profiles import profile as prices_of
    from onespike.reports.live import Session
    from onespike.reports.server import HERE, LiveServer
    from onespike.runs import load_run

    if not 0 <= port < 2**16:
        raise UsageError(f"--port must be from 0 to 65535, not {port}.")
    pair = load_run(run, device=device)
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
    if server.sizes:  # torch computes in another thread, where the interpreter cannot end in order
        atexit.register(os._exit, 0)
    return "report", run
