"""The command line: `onespike --help`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; a mistake the user can mend is one message and exit code 2."""
    try:
        from onespike.cli.app import app

        app()
    except ModuleNotFoundError as error:
        if (error.name or "onespike").partition(".")[0] == "onespike":
            raise
        message = f"onespike: this needs {error.name}. Install it with: pip install 'onespike[all]'"
        print(message, file=sys.stderr)
        sys.exit(2)
