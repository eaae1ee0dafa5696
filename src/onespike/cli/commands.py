"""How commands fail and how their help ends: one message with the remedy, and an example to copy."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import torch
import typer
from typer.core import TyperGroup

from onespike.errors import OnespikeError


class Commands(TyperGroup):
    """All commands: whatever the user can mend ends in one line on standard error and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OnespikeError as error:
            raise _failure(str(error)) from error
        except KeyboardInterrupt as error:
            raise _failure("interrupted, nothing was written. Run the same command again.") from error
        except torch.OutOfMemoryError as error:
            raise _failure("the device has too little memory. Give a smaller --batch-size.") from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of a pipe went away, as `head` does
                raise
            place = f"{error.filename}: " if error.filename else ""
            reason = error.strerror or type(error).__name__
            raise _failure(f"{place}{reason}. Check the path, its permissions and the disk.") from error


def _failure(message: str) -> typer.Exit:
    typer.echo(f"onespike: {message}", err=True)
    return typer.Exit(2)


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


def command(*examples: str, name: str | None = None) -> Callable[[Command], Command]:
    """Register a command whose help ends with these examples, which are not wrapped."""
    title = "Example:" if len(examples) == 1 else "Examples:"
    lines = [title, *(f"  {line}" for example in examples for line in example.splitlines())]
    return app.command(name, epilog="\b\n" + "\n".join(lines))
