"""A network and how it was converted as a folder, and from a folder or a repository on the Hub."""

from __future__ import annotations

from pathlib import Path

from onespike.adapters.base import first_line, require
from onespike.errors import LoadError
from onespike.runs.pair import NetworkPair
from onespike.runs.saving import load_run, save_run


def save(folder: Path | str, pair: NetworkPair) -> Path:
    """Write a network and how it was converted into a new folder: JSON and safetensors."""
    save_run(Path(folder), pair)
    return Path(folder)


def load(folder: Path | str) -> NetworkPair:
    """Read what `save` or `onespike convert` wrote; nothing in it is unpickled."""
    return load_run(Path(folder))


def from_pretrained(name: Path | str, *, revision: str | None = None) -> NetworkPair:
    """Load a converted network from a folder, or from a repository `OWNER/NAME` on the Hugging Face Hub."""
    if Path(name).is_dir():
        return load_run(Path(name))
    hub = require("huggingface_hub", "transformers", f"from_pretrained {name}")
    try:
        folder = hub.snapshot_download(str(name), revision=revision)
    except Exception as error:  # any exception of a hub client: offline, no such repository, no permission
        raise LoadError(
            f"{name}: neither a folder nor a repository that can be fetched ({first_line(error)}). "
            "Check the name and the network connection."
        ) from error
    return load_run(Path(folder))
