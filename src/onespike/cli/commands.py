"""How commands fail and how their help ends: one message with the remedy, and an example to copy."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, wraps
from pathlib import Path
from typing import Any

import torch
import typer
from typer.core import TyperGroup

from onespike.errors import OnespikeError
from onespike.processes import launched

processes_of = cache(launched)
"""Those that run this command: one, or as many as a launcher has started."""


class Commands(TyperGroup):
    """All commands: whatever the user can mend ends in one line on standard error and exit code 2.

    Where several processes were launched, they end with one fate, and the first of them speaks.
    """

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            processes = processes_of()
        except OnespikeError as error:
            _say(str(error))
            sys.exit(2)
        if processes.first:
            return super().main(*args, **kwargs)
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            return super().main(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        processes = processes_of()
        try:
            with processes.one_fate():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            _say(f"interrupted, {INTERRUPTED.get(ctx.invoked_subcommand, NOTHING_WRITTEN)}")
            raise typer.Exit(2) from error
        except Exception as error:
            message = _message(error)
            if message is None:
                raise
            _say(message)
            processes.wait()
            raise typer.Exit(2) from error


def _message(error: Exception) -> str | None:
    """What the user can do about it; None for an error that is not the user's."""
    if isinstance(error, OnespikeError):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "the device has too little memory. Give a smaller --batch-size."
    # where the reader of a pipe went away, as `head` does, there is nobody to tell
    if isinstance(error, OSError) and error.errno != errno.EPIPE:
        place = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or type(error).__name__
        return f"{place}{reason}. Check the path, its permissions and the disk."
    return None


def _say(message: str) -> None:
    typer.echo(f"onespike: {message}", err=True)


NOTHING_WRITTEN = "nothing was written. Run the same command again."
INTERRUPTED: dict[str | None, str] = {}
"""Command → what Ctrl-C leaves, for those that keep what is finished."""


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    help="Convert pretrained PyTorch networks to single-timestep spiking networks.\n\n"
    "Start with: onespike demo",
)

Command = Callable[..., None]


def command(
    *examples: str, name: str | None = None, shared: bool = False, interrupted: str = NOTHING_WRITTEN
) -> Callable[[Command], Command]:
    """Register a command whose help ends with these examples, which are not wrapped.

    Of several launched processes all run a `shared` command, each its part; only the first runs any other.
    """
    title = "Example:" if len(examples) == 1 else "Examples:"
    lines = [title, *(f"  {line}" for example in examples for line in example.splitlines())]

    def register(function: Command) -> Command:
        INTERRUPTED[name or function.__name__] = interrupted

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> None:
            if shared or processes_of().first:
                function(*args, **kwargs)

        return app.command(name, epilog="\b\n" + "\n".join(lines))(run)

    return register
