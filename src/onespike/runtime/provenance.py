"""How figures were made: machine, versions, command and commit, in the JSON of every command."""

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

COMMAND: ContextVar[str] = ContextVar("COMMAND", default="")  # the command as it was typed; nothing in Python
CHECKOUT = Path(__file__).parents[3]  # the repository, where the package lies in one


def stamped(record: Mapping[str, Any] | Sequence[Any]) -> str:
    """Return a record and how it was made, as JSON; a table becomes the field `rows`."""
    named = record if isinstance(record, Mapping) else {"rows": record}
    return json.dumps({**named, "made": made(), "versions": versions()}, indent=1, ensure_ascii=False) + "\n"


def made() -> dict[str, str]:
    """Return when, where and how figures were made."""
    import torch

    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": processor(),
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()}",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "command": COMMAND.get(),
        "commit": commit(),
    }
    return {name: fact for name, fact in facts.items() if fact}


def processor() -> str:
    information = Path("/proc/cpuinfo")
    text = information.read_text(encoding="utf-8", errors="replace") if information.exists() else ""
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.M)
    return model[1].strip() if model else platform.processor() or platform.machine()


@cache
def commit() -> str:
    """Return onespike's commit, with `-dirty` after changes; nothing where it is not run from its repository."""
    git = shutil.which("git")
    if git is None or not (CHECKOUT / ".git").exists():
        return ""
    # no lock on the index, which a killed process would leave behind
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    words = (git, "--no-optional-locks", "-C", str(CHECKOUT), *describe)
    result = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - nothing of the user's
    return result.stdout.strip()


def versions() -> dict[str, str]:
    """Return the versions that matter for reproducing figures."""
    import torch

    installed = {"torch": str(torch.__version__)}
    for package in ("onespike", "timm", "torchvision", "transformers", "numpy"):
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed
