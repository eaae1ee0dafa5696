"""The command line: `onespike --help`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; a mistake the user can mend is one message and exit code 2."""
    from onespike.errors import OnespikeError

    try:
        from onespike.cli.app import app
    except ModuleNotFoundError as error:
        print(
            f"onespike: the command line needs {error.name}. Install it with: pip install 'onespike[all]'",
            file=sys.stderr,
        )
        sys.exit(2)
    try:
        app(standalone_mode=True)
    except OnespikeError as error:
        print(f"onespike: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("onespike: interrupted, nothing was written. Run the same command again.", file=sys.stderr)
        sys.exit(2)
