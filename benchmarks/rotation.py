"""Whether a rotation of a layer's input, which spreads outliers over all channels, pays in spikes.

    python benchmarks/rotation.py [--network vit-tiny] [--assets ../shared/assets] [--images 32]

For each linear map: the squared error of its output when its centered input is rounded to whole spikes, with one step
for all channels; after a random rotation of the input, which the weights undo; and with a step for each channel. All
three fire the same number of spikes. Figures are geometric means over layers, relative to one step.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from front import NETWORKS
from torch import Tensor, nn

from onespike import runs

SPIKES = (0.3, 1.0, 3.0)
"""A neuron, on average."""


def inputs_of(model: nn.Module, batches: list[Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each inner linear map's name, a seventh of its inputs and its weight."""
    found: dict[str, list[Tensor]] = {}
    linear = {n: m for n, m in model.named_modules() if type(m) is nn.Linear and not n.startswith("head")}
    for name, module in linear.items():
        module.register_forward_pre_hook(
            lambda _, x, name=name: found.setdefault(name, []).append(x[0].flatten(0, -2)[::7])
        )
    with torch.inference_mode():
        for batch in batches:
            model(batch)
    for name, rows in found.items():
        yield name, torch.cat(rows), linear[name].weight.detach()


def error(x: Tensor, weight: Tensor, steps: Tensor, spikes: float) -> float:
    """The output's mean squared error with steps of these proportions that fire so many spikes."""
    low, high = -20.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        fired = (x / (steps * 2**middle)).round().abs().mean()
        low, high = (middle, high) if fired > spikes else (low, middle)
    steps = steps * 2**high
    return float(((x - (x / steps).round() * steps) @ weight.T).pow(2).mean())


def main() -> None:
    beside = Path(__file__).resolve().parents[2] / "shared" / "assets"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--network", default="vit-tiny", choices=NETWORKS)
    parser.add_argument("--assets", type=Path, default=beside)
    parser.add_argument("--images", type=int, default=32)
    options = parser.parse_args()
    subject = NETWORKS[options.network]
    loaded = subject.load(options.assets)
    chosen = runs.choose(subject.calibration(options.assets), options.images)
    layers = list(inputs_of(loaded.model.eval(), list(runs.Inputs(chosen, loaded, 16))))
    torch.manual_seed(0)
    for spikes in SPIKES:
        rows: dict[str, list[Tensor]] = {}
        for name, x, weight in layers:
            x = x - x.median(0).values
            turn = torch.linalg.qr(torch.randn(x.shape[1], x.shape[1]))[0]
            single = torch.ones(())
            each = (x.abs().mean(0).clamp(min=1e-9) / weight.pow(2).sum(0).clamp(min=1e-12)) ** (1 / 3)
            figures = torch.tensor(
                [error(x, weight, single, spikes), error(x @ turn, weight @ turn, single, spikes),
                 error(x, weight, each, spikes)]
            )  # fmt: skip
            for group in ("all", name.rpartition(".")[2]):
                rows.setdefault(group, []).append((figures[1:] / figures[0]).log())
        for group, logs in rows.items():
            rotated, channel = torch.stack(logs).mean(0).exp().tolist()
            print(f"{spikes} spikes a neuron, {group}: rotated {rotated:.2f}, a step a channel {channel:.2f}")


if __name__ == "__main__":
    main()
