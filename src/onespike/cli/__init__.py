"""The command line: `onespike --help`."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

WARNING = "onespike: warning"


def main() -> None:
    """Run the command; an error that the user can mend is one message and exit code 2.

    Before a command begins there is nothing to undo, so Ctrl-C ends the process at once; after its end there is
    nothing to stop.
    """
    _open_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as in the background
        signal.signal(signal.SIGINT, _stop)
    try:
        _check_words(sys.argv)
        with loading():
            from onespike.cli.app import app
        app()
    except BrokenPipeError:  # nobody reads the help page
        sys.exit(2)
    except OSError as error:
        refuse(f"standard output: {error.strerror}. Check where it goes.")
    except KeyboardInterrupt as late:  # the command had ended, and was about to say how
        sys.exit(getattr(late.__context__, "code", 0))
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _flush()


@contextmanager
def loading() -> Iterator[None]:
    """Turn a library that is absent, or cannot be loaded, into one line."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "onespike").partition(".")[0] == "onespike":
            raise
        refuse(f"this needs {error.name}. Install it with: pip install 'onespike[all]'")
    except (ImportError, OSError, MemoryError) as error:  # it cannot be mapped, for lack of memory
        reason = str(error).partition("\n")[0] or "too little memory"
        refuse(f"a library cannot be loaded ({reason}). Free some memory, or install it again.")


def interruptible() -> None:
    """Make Ctrl-C an exception from here on, so that started work is undone."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def refuse(message: str) -> NoReturn:
    """Print one line on standard error and exit with 2."""
    say(message)
    sys.exit(2)


def say(message: str, start: str = "onespike") -> None:
    """Print one line on standard error; names of files and fields may hold line breaks and unprintable characters."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    try:
        print(f"{start}: {line}", file=sys.stderr, flush=True)
    except OSError:  # nobody is reading
        return


def _stop(*_: Any) -> None:
    os.write(2, b"onespike: interrupted, nothing was written. Run the same command again.\n")
    os._exit(2)


def _open_streams() -> None:
    """Replace closed standard streams by /dev/null: else the next opened file would take their place.

    Characters that their encoding lacks are written as escapes.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)  # opened as this number, if that is closed
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
        elif number and hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def _check_words(words: list[str]) -> None:
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            readable = os.fsencode(word).decode("utf-8", "backslashreplace")
            refuse(f"the argument '{readable}' is not UTF-8. Rename the file, or give a link to it.")


def _flush() -> None:
    """Find output that cannot be written here, before the interpreter does at its end."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        said = getattr(error.__context__, "code", 0)  # the command has ended with a message already
        if said or isinstance(error, BrokenPipeError):  # as with `head`: nobody is reading
            sys.exit(2)
        refuse(f"standard output: {error.strerror}. Check where it goes.")
