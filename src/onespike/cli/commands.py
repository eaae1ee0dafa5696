"""What all commands share: their errors, their help pages, and their last line."""

from __future__ import annotations

import inspect
import logging
import os
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from functools import cache, partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from onespike import __version__
from onespike.cli import interruptible, loading, output, refuse, say
from onespike.cli.status import alive
from onespike.errors import OnespikeError, OnespikeWarning, UsageError, out_of_memory
from onespike.runtime.processes import launched
from onespike.runtime.provenance import COMMAND

processes_of = cache(launched)
"""The processes that run this command: one, or as many as a launcher has started."""


def refuse_several(device_map: str | None) -> None:
    """Refuse a device map with several processes: it spreads one network over devices that they would share."""
    if device_map is not None and processes_of().count > 1:
        raise UsageError("--device-map needs the devices of all processes. Start one process only.")


def _warn(otherwise: Any, message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Print our warnings as one line, like errors; those of other packages only where Python was asked for them."""
    if issubclass(category, OnespikeWarning):
        say(str(message), "onespike: warning")
    elif sys.warnoptions:
        otherwise(message, category, *place, **more)


class Commands(TyperGroup):
    """All commands: errors that the user can mend end in one line on standard error and exit code 2.

    If several processes were launched, they all end together, and the first of them prints.
    """

    def main(self, *args: Any, **kwargs: Any) -> Any:
        # about damaged metadata, which is not used; damaged pixels are an error
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
        warnings.simplefilter("always", OnespikeWarning)
        shown, logged = warnings.showwarning, logging.root.manager.disable
        warnings.showwarning = partial(_warn, shown)
        logging.disable(logging.WARNING)  # notices of other packages: ours are warnings and errors
        try:
            processes = processes_of()
            if processes.is_main:
                return super().main(*args, **kwargs)
            with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
                return super().main(*args, **kwargs)
        except OnespikeError as error:
            refuse(str(error))
        finally:
            logging.disable(logged)

    def invoke(self, ctx: Any) -> Any:
        processes = processes_of()
        interruptible()
        try:
            with processes.one_fate():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            say(f"interrupted, {INTERRUPTED.get(ctx.invoked_subcommand, NOTHING_WRITTEN)}")
            raise typer.Exit(2) from error
        except BrokenPipeError as error:  # the reader went away, as `head` does: nobody is reading
            raise typer.Exit(2) from error
        except Exception as error:
            message = _message(error)
            if message is None:
                raise
            say(as_options(message, self._options(ctx)))
            processes.wait()
            raise typer.Exit(2) from error

    def _options(self, ctx: Any) -> set[str]:
        """Return the names of all commands' parameters that have an option."""
        commands = (self.get_command(ctx, name) for name in self.list_commands(ctx))
        options = (o for command in commands if command for p in command.params for o in p.opts)
        return {o.removeprefix("--").replace("-", "_") for o in options if o.startswith("--")}


class Page(TyperCommand):
    """A help page with options in panels: basic ones first, then those that name a panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (shown := param.get_help_record(ctx)) is not None:
                argument = param.param_type_name == "argument"
                panel = getattr(param, "rich_help_panel", None) or "Basic"
                panels.setdefault("Arguments" if argument else f"{panel} options", []).append(shown)
        if list(panels) in (["Basic options"], ["Arguments", "Basic options"]):
            panels["Options"] = panels.pop("Basic options")
        for title in sorted(panels, key=lambda title: (title != "Arguments", title != "Basic options")):
            with formatter.section(title):
                formatter.write_dl(panels[title])


def as_options(message: str, options: set[str]) -> str:
    """Return a message of the library in the command line's spelling: its arguments are options here.

    >>> as_options("Use attention='sdpa', or exclude=['a:gru', 'b:gru'].", {"attention", "exclude"})
    'Use --attention sdpa, or --exclude a:gru --exclude b:gru.'
    >>> as_options("Take resume=True, or fold_batchnorm=False.", {"resume", "fold_batchnorm"})
    'Take --resume, or --fold-batchnorm no.'
    """

    def option(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in options:
            return match[0]
        if value in ("True", "False"):
            return f"--{name.replace('_', '-')}" + ("" if value == "True" else " no")
        words = re.findall(r"'([^']*)'", value) or [value]
        return " ".join(f"--{name.replace('_', '-')} {shlex.quote(word)}" for word in words)

    return re.sub(r"\b([a-z_]+)=(\['[^]]*\]|'[^']*'|[0-9.]*[0-9]|True|False)", option, message)


def _message(error: Exception) -> str | None:
    """Return what the user can do about it; None for an error that is not the user's."""
    if isinstance(error, OnespikeError):
        return str(error)
    if out_of_memory(error):
        return "the device has too little memory. Give a smaller --batch-size."
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or type(error).__name__
        return f"{place}{reason}. Check the path, its permissions and the disk."
    return None


NOTHING_WRITTEN = "nothing was written. Run the same command again."
INTERRUPTED: dict[str | None, str] = {}
"""Command → what Ctrl-C leaves, for commands that keep finished work."""


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"onespike {__version__}")
        raise typer.Exit


@app.callback()
def onespike(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Convert pretrained PyTorch networks to single-timestep spiking networks.

    Start with: onespike demo
    """


_followed: ContextVar[bool] = ContextVar("_followed", default=False)


@contextmanager
def following() -> Iterator[None]:
    """Suppress the `next:` line of a command that another command runs."""
    token = _followed.set(True)
    try:
        yield
    finally:
        _followed.reset(token)


def _priced(profile: str | None) -> AbstractContextManager[None]:
    """Return the context of --profile, whose prices every ratio of the command then has."""
    if profile is None:
        return nullcontext()
    from onespike.energy.profiles import priced

    return priced(profile)


TAKE_RUNS: set[str] = set()
"""The commands that load a run: they take --model, too."""
Named = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="The network of a run that holds no code, as python:FILE.py:FACTORY: no file is run unless you name it.",
    ),
]


def _named(model: str | None, takes_run: bool) -> AbstractContextManager[None]:
    """Return the context in which runs may be rebuilt by the user's own file: --model, or the MODEL of a new run."""
    if model is None or not (takes_run or model.startswith("python:")):
        return nullcontext()
    from onespike.adapters.user_file import named

    return named(model)


def _again(model: str | None, words: tuple[object, ...]) -> tuple[str, ...]:
    """Return what the next command needs to load a run of the user's own file."""
    return ("--model", model) if model and model.startswith("python:") and words[0] in TAKE_RUNS else ()


Next = tuple[object, ...]
"""The words of the next command, after `onespike`."""


def command(
    *examples: str,
    name: str | None = None,
    shared: bool = False,
    interrupted: str = NOTHING_WRITTEN,
    needs: str = "onespike.runs",
) -> Callable[[Callable[..., Next]], Callable[..., None]]:
    """Register a command whose help ends with these examples, which are not wrapped.

    It returns the next command, which is printed last, on standard error. All launched processes run a
    `shared` command, each its part; only the first runs any other. A command's imports happen when it runs, since
    a help page needs neither torch nor anything built on it: first `needs`, the rest in the command itself.
    """
    title = "Example:" if len(examples) == 1 else "Examples:"
    lines = [title, *(f"  {line}" for example in examples for line in example.splitlines())]

    def register(function: Callable[..., Next]) -> Callable[..., None]:
        INTERRUPTED[name or function.__name__] = interrupted
        signature = inspect.signature(function, eval_str=True)
        takes_run = bool({"run", "runs"} & signature.parameters.keys())

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> None:
            with alive(), loading():
                import_module(needs)
            if not _followed.get():
                COMMAND.set(shlex.join(("onespike", *sys.argv[1:])))
            model = kwargs.pop("model", None) if takes_run else kwargs.get("model")
            if shared or processes_of().is_main:
                with alive(), output.collected(), _priced(kwargs.get("profile")), _named(model, takes_run):
                    words = function(*args, **kwargs)
                    if processes_of().is_main:
                        output.tables(kwargs.get("json_file"))
                sys.stdout.flush()  # results come before
                if not _followed.get():
                    say(shlex.join(map(str, ("onespike", *words, *_again(model, words)))), start="next")

        run.__annotations__ = dict(function.__annotations__)
        if takes_run:
            TAKE_RUNS.add(name or function.__name__)
            added = inspect.Parameter("model", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Named)
            every = (*signature.parameters.values(), added)
            run.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
            run.__annotations__["model"] = Named
        app.command(name, cls=Page, epilog="\b\n" + "\n".join(lines))(run)
        return run

    return register
