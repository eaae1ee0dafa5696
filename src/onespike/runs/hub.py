"""A network and how it was converted as a folder, and from a folder or a repository on the Hub."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from onespike.adapters.base import first_line, require
from onespike.errors import LoadError
from onespike.runs.own import save_network
from onespike.runs.pair import NetworkPair
from onespike.runs.saving import load_run, save_run


def save(folder: Path | str, network: NetworkPair | nn.Module) -> Path:
    """Write a network and how it was converted into a new folder: JSON and safetensors.

    Args:
        folder: must not exist.
        network: a pair, which an adapter can rebuild from its folder, or a converted network of any class, which is
            given to `load` or `from_pretrained` again, with any weights.
    """
    if isinstance(network, nn.Module):
        return save_network(network, folder)
    save_run(Path(folder), network)
    return Path(folder)


def load(folder: Path | str, model: nn.Module | str | None = None) -> NetworkPair:
    """Read what `save`, `save_pretrained` or `onespike convert` wrote; nothing in it is unpickled.

    A folder that a converted network was saved into from Python holds its weights and not its code: give a `model` of the
    same class, which receives the weights, or its name: `python:FILE.py:FACTORY`.
    """
    return load_run(Path(folder), model)


def from_pretrained(
    name: Path | str, model: nn.Module | str | None = None, *, revision: str | None = None
) -> NetworkPair:
    """Load like `load` from a folder, or from a repository `OWNER/NAME` on the Hugging Face Hub."""
    if Path(name).is_dir():
        return load_run(Path(name), model)
    hub = require("huggingface_hub", "transformers", f"from_pretrained {name}")
    try:
        folder = hub.snapshot_download(str(name), revision=revision)
    except Exception as error:  # any exception of a hub client: offline, no such repository, no permission
        raise LoadError(
            f"{name}: neither a folder nor a repository that can be fetched ({first_line(error)}). "
            "Check the name and the network connection."
        ) from error
    return load_run(Path(folder), model)
