"""What all commands share: their errors, their help pages, and their last line."""

import inspect
import logging
import os
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from onespike import __version__
from onespike.cli import WARNING, interruptible, loading, options, output, refuse, say
from onespike.cli.options import RECIPE_OPTIONS, Word, recipe_of, spelled_now, typed
from onespike.errors import OnespikeError, OnespikeWarning, UsageError, out_of_memory
from onespike.recipe import FIELDS, Recipe
from onespike.runtime.processes import launched
from onespike.runtime.progress import reporting
from onespike.runtime.provenance import COMMAND

processes_of = cache(launched)
"""The processes that run this command: one, or as many as a launcher has started."""


def _warn(otherwise: Any, message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Print our warnings as one line, like errors; those of other packages only where Python was asked for them."""
    if issubclass(category, OnespikeWarning):
        say(as_options(str(message)), start=WARNING)
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
        show, logged = warnings.showwarning, logging.root.manager.disable
        warnings.showwarning = partial(_warn, show)
        logging.disable(logging.WARNING)  # notices of other packages: ours are warnings and errors
        try:
            if processes_of().is_main:
                return super().main(*args, **kwargs)
            with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
                return super().main(*args, **kwargs)
        except OnespikeError as error:
            refuse(as_options(str(error)))
        finally:
            logging.disable(logged)

    def invoke(self, ctx: Any) -> Any:
        processes = processes_of()
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
            if (message := _message(error)) is None:
                raise
            say(as_options(message))
            processes.wait()
            raise typer.Exit(2) from error

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if (now := options.EARLIER_COMMANDS.get(cmd_name)) is not None:
            raise UsageError(f"`onespike {cmd_name}` is now: {now}")
        return super().get_command(ctx, cmd_name)


class Page(TyperCommand):
    """A command that knows earlier spellings; its help shows basic options first, then those that name a panel."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        existing = {option for param in self.params for option in param.opts}
        for word in args:
            if message := spelled_now(word, existing):
                raise UsageError(message)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (row := param.get_help_record(ctx)) is not None:
                argument = param.param_type_name == "argument"
                panel = getattr(param, "rich_help_panel", None) or "Basic"
                panels.setdefault("Arguments" if argument else f"{panel} options", []).append(row)
        if list(panels) in (["Basic options"], ["Arguments", "Basic options"]):
            panels["Options"] = panels.pop("Basic options")
        for title in sorted(panels, key=lambda title: (title != "Arguments", title != "Basic options")):
            with formatter.section(title):
                formatter.write_dl(panels[title])


ARGUMENT = re.compile(
    r"(?<!--set )(?<!--preprocess )\b([a-z_]+)=(\[[^]]*\]|'[^']*'|(?:[\w*][\w%:/*-]*(?:\.\w+)*)?)"
)
"""An argument in a message of the library, as Python writes it: `name=value`, or `name=` alone."""
TYPED = {
    **{name: f"--set {name}" for name in FIELDS},
    **{name: f"--{name.replace('_', '-')}" for name in (*options.OPTIONS, *RECIPE_OPTIONS)},
    **{name: f"--preprocess {name}" for name in ("mean", "std", "resize", "crop")},
    "pretrained": "--weights pretrained",
    "random_weights": "--weights random",
}
"""How each argument of the library is typed: as an option, or by --set for a recipe's field."""


def as_options(message: str) -> str:
    """Return a message of the library in the command line's spelling: its arguments are options here.

    >>> as_options("Use attention='sdpa', or exclude=['a:gru', 'b:gru']. Leave limit= out.")
    'Use --attention sdpa, or --set exclude=a:gru --set exclude=b:gru. Leave --limit out.'
    >>> as_options("Take resume=True, or fold_batchnorm=False.")
    'Take --resume, or --set fold_batchnorm=no.'
    """

    def option(match: re.Match[str]) -> str:
        name, text = match.groups()
        if name not in TYPED:
            return match[0]
        option, _, field = TYPED[name].partition(" ")
        if (text == "True" and option != "--set") or (not text and not field):
            return TYPED[name]
        values = re.findall(r"'([^']*)'", text) or [{"True": "yes", "False": "no", "": "…"}.get(text, text)]
        return " ".join(f"{option} {shlex.quote(f'{field}={v}' if field else v)}" for v in values)

    return ARGUMENT.sub(option, message)


def _message(error: Exception) -> str | None:
    """Return what the user can do about it; None for an error that is not the user's."""
    if isinstance(error, OnespikeError):
        return str(error)
    if out_of_memory(error):
        return "the device has too little memory. Give a smaller --batch-size."
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return (
            f"{place}{error.strerror or type(error).__name__}. Check the path, its permissions and the disk."
        )
    return None


NOTHING_WRITTEN = "nothing was written. Run the same command again."
INTERRUPTED: dict[str | None, str] = {}  # command → what Ctrl-C leaves, for commands that keep finished work
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

    Start with: onespike demo. The usual presets are fast (the default), best, text and sformer (the paper's method).
    """


TAKE_RUNS: set[str] = set()  # the commands that load a run: they take --model, too
Next = tuple[object, ...]  # the words of the next command, after `onespike`


def command(
    *,
    name: str | None = None,
    shared: bool = False,
    interrupted: str = NOTHING_WRITTEN,
    needs: str = "onespike.runs",
    **differences: Word,
) -> Callable[[Callable[..., Next]], Callable[..., Next]]:
    """Register a command whose help ends with its `EXAMPLES`, which are not wrapped.

    Its positional parameters are arguments, its keyword-only ones options as `OPTIONS` describes them, or as
    `DIFFERENCES` and `differences` do. It returns the next command, which is printed last, on standard error. All launched processes
    run a `shared` command, each its part; only the first runs any other. A command's imports happen when it runs, since
    a help page needs neither torch nor anything built on it: first `needs`, the rest in the command itself.
    """

    def register(function: Callable[..., Next]) -> Callable[..., Next]:
        word = name or function.__name__
        lines = [f"  {line}" for line in options.EXAMPLES[word].splitlines()]
        INTERRUPTED[word] = interrupted
        declared = dict(inspect.signature(function, eval_str=True).parameters)
        takes_run = bool({"run", "runs"} & declared.keys())
        takes_recipe = any(parameter.annotation is Recipe for parameter in declared.values())
        if takes_run:
            TAKE_RUNS.add(word)
            keyword = inspect.Parameter.KEYWORD_ONLY
            declared["model"] = inspect.Parameter("model", keyword, default=None, annotation=str | None)

        def run(**values: Any) -> None:
            with loading():
                import_module(needs)
            interruptible()  # not before: an import that an exception stops leaves half a library
            COMMAND.set(shlex.join(("onespike", *sys.argv[1:])))
            if not (shared or processes_of().is_main):
                return
            model = values.pop("model", None) if takes_run else values.get("model")
            code = model is not None and model.startswith("python:")
            output.PRINTED.clear()
            with ExitStack() as stack:
                stack.enter_context(reporting(output.progress, output.note))
                if (profile := values.get("profile")) is not None:  # every ratio then has its prices
                    from onespike.energy.profiles import priced

                    stack.enter_context(priced(profile))
                if model is not None and (takes_run or code):  # runs may be rebuilt by the user's own file
                    from onespike.adapters.python import named

                    stack.enter_context(named(model))
                if values.get("device_map") is not None and processes_of().count > 1:
                    raise UsageError("--device-map needs the devices of all processes. Start one only.")
                if "device" in values:
                    from onespike.runtime.devices import check_device

                    check_device(values["device"])
                if takes_recipe:
                    values["recipe"] = recipe_of(**{field: values.pop(field) for field in RECIPE_OPTIONS})
                words = function(**values)
                if processes_of().is_main:
                    output.tables(values.get("json_file"))
            sys.stdout.flush()  # results come before
            again = ("--model", model) if code and words[0] in TAKE_RUNS else ()
            say(shlex.join(map(str, ("onespike", *words, *again))), start="next")

        parameters = list(typed(declared, options.DIFFERENCES.get(word, {}) | differences))
        run.__doc__ = function.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        app.command(word, cls=Page, epilog="\n".join(["\b", "Examples:", *lines]))(run)
        return function

    return register
