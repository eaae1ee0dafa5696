"""The verbs `save` and `load`: a pair of networks ↔ a folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from torch import nn

from onespike.adapters import LoadedModel, load_checkpoint_, load_model, normalization, renormalized, resized
from onespike.adapters.user_file import NAMED
from onespike.runs import storage
from onespike.runs.own import convert, filled, refuse_missing
from onespike.runs.pair import NetworkPair
from onespike.runtime.devices import check_device, in_blocks, place_
from onespike.runtime.validated import understood


def save_run(folder: Path, pair: NetworkPair, *, reference_weights: Path | None = None) -> None:
    loaded = pair.loaded
    storage.save(
        folder,
        model=pair.ann,
        network={
            "spec": loaded.spec,
            "weights": loaded.weights,
            "attention": loaded.attention,
            "preprocessing": loaded.reading.preprocessing,
            "published_top1": loaded.published_top1,
            **({} if loaded.reading.length is None else {"length": loaded.reading.length}),
            **({} if loaded.reading.size is None else {"size": loaded.reading.size}),
            **(
                {}
                if loaded.reading.replaced is None
                else {"normalization": normalization(loaded.reading.transform)}
            ),
        },
        recipe=pair.recipe,
        thresholds=pair.thresholds,
        data=pair.data,
        reference_weights=reference_weights,
        configuration=loaded.save_configuration,
    )


def load_run(
    folder: Path,
    model: nn.Module | str | None = None,
    *,
    device: str = "cpu",
    device_map: str | None = None,
) -> NetworkPair:
    """Rebuild a saved network, or fill the one that is given, and convert a copy; the logits are the same to the bit.

    A network whose code the run does not hold is given, or named as for `load_model`; by default as the user has typed it.
    """
    check_device(device)
    run = storage.load(folder)
    model = NAMED.get() if model is None else model
    with understood(folder, storage.REMEDY):
        if model is None:
            refuse_missing(run)
        if isinstance(model, nn.Module):
            loaded = filled(run, model)
        else:
            loaded = _load_network(run, model or run.network["spec"], on_disk=in_blocks(device_map))
        ann = place_(loaded.model, device, device_map)
        snn = convert(ann, run.thresholds, run.recipe, share_weights=True)
    return NetworkPair(loaded, ann, snn, run.recipe, run.thresholds, run.data)


def _load_network(run: storage.Run, spec: str, on_disk: bool = False) -> LoadedModel:
    attention = run.network["attention"]
    if spec == run.network["spec"] and (run.folder / storage.CONFIGURATION).is_dir():
        spec = f"{spec.partition(':')[0]}:{run.folder / storage.CONFIGURATION}"
    if on_disk:
        loaded = load_model(spec, weights=run.weights_file, attention=attention, on_disk=True)
    elif run.holds_weights:  # under the names that the network has in memory
        loaded = load_model(spec, random_weights=True, attention=attention)
        load_checkpoint_(loaded.model, run.weights_file)
    else:  # under the names that their publisher gave them
        loaded = load_model(spec, weights=run.weights_file, attention=attention)
    if size := run.network.get("size"):
        loaded = resized(loaded, *size)
    if given := run.network.get("normalization", run.network.get("normalisation")):  # earlier runs: with an s
        loaded = renormalized(loaded, *given)
    if length := run.network.get("length"):
        loaded = loaded.with_length(length)
    named = run.network["spec"] if (run.folder / storage.CONFIGURATION).is_dir() else spec
    known: dict[str, Any] = {k: run.network.get(k) for k in ("weights", "published_top1")}
    return dataclasses.replace(loaded, spec=named, **known)
