"""Run an exported NIR file in other simulators, and compare every count: python … NETWORK.nir FOLDER READER.

FOLDER is the export `integers` of the same network on the same inputs, whose golden spikes are compared. READER is norse,
spikingjelly or sinabs, which need onespike[nir], `spikingjelly[nir]>=2`, or `sinabs` and then `nir>=1.0.8`.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import nir
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

READERS: dict[str, Callable[[Any], nn.Module]] = {}


def reader(function: Callable[[Any], nn.Module]) -> Callable[[Any], nn.Module]:
    READERS[function.__name__] = function
    return function


@reader
def norse(graph: Any) -> nn.Module:
    import norse.torch

    return norse.torch.from_nir(graph, dt=1)


@reader
def spikingjelly(graph: Any) -> nn.Module:
    from spikingjelly.activation_based.nir_exchange import import_from_nir

    return import_from_nir(graph, dt=1)


@reader
def sinabs(graph: Any) -> nn.Module:
    from sinabs.activation import SingleSpike
    from sinabs.layers import IAF
    from sinabs.nir import from_nir

    network: nn.Module = from_nir(graph, batch_size=1)
    for module in network.modules():
        if isinstance(module, IAF):  # by default it fires trunc(v / threshold) spikes at once, without a word
            module.spike_fn = SingleSpike
            module.register_forward_pre_hook(lambda neurons, _: neurons.reset_states())
    return network


def note(fired: list[Tensor], module: Any, x: Any, output: Any) -> None:
    fired.append(output[0] if isinstance(output, tuple) else output)


def main(file: Path, folder: Path, name: str) -> tuple[int, int]:
    """Return how many counts were compared, and how many differ."""
    graph, golden = nir.read(file), load_file(folder / "golden.safetensors")
    inputs = next(value for part, value in golden.items() if part.startswith("input."))
    network, counts = READERS[name](graph), dict[str, list[Tensor]]()
    modules = dict(network.named_modules())
    for part, node in graph.nodes.items():  # the nodes that turn spikes into counts again
        if part.endswith("_values"):
            site = node.metadata["onespike.site"]
            site = site.decode() if isinstance(site, bytes) else str(site)
            modules[part].register_forward_hook(partial(note, counts.setdefault(site, [])))
    with torch.no_grad():
        for one in inputs:
            network(one if name == "norse" else one[None])
    compared = differ = 0
    for site, fired in counts.items():
        seen = torch.cat([part.flatten() for part in fired])
        expected = torch.zeros_like(seen)
        expected[golden[f"neurons.{site}"].long()] = golden[f"counts.{site}"].to(seen)
        compared, differ = compared + seen.numel(), differ + int((seen != expected).sum())
    return compared, differ


if __name__ == "__main__":
    print("{} counts compared, {} differ".format(*main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])))
