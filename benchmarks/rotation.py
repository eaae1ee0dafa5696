"""Whether a rotation of a layer's input, which spreads outliers over all channels, pays in spikes.

    python benchmarks/rotation.py [--network vit-tiny] [--assets ../shared/assets] [--images 32]
    python benchmarks/rotation.py --network transformers:DIR --text calibration.txt [--images 12] [--length 256]

For each linear map: the squared error of its output when its centered input is rounded to whole spikes, with one step
for all channels; after a random rotation of the input, which the weights undo; with a step for each channel; and with a
step for each principal component of the input, found on other rows, a rotation of its own for each layer. All fire the
same number of spikes.
Figures are geometric means over layers, relative to one step.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from front import NETWORKS
from torch import Tensor, nn

from onespike import runs
from onespike.adapters import load_model
from onespike.runtime.batches import call

SPIKES = (0.3, 1.0, 3.0)
"""A neuron, on average."""


def inputs_of(model: nn.Module, batches: list[Any], every: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each inner linear map's name, one row in `every` of its inputs and its weight."""
    found: dict[str, list[Tensor]] = {}
    heads = ("head", "lm_head")
    linear = {n: m for n, m in model.named_modules() if type(m) is nn.Linear and not n.startswith(heads)}
    for name, module in linear.items():
        module.register_forward_pre_hook(
            lambda _, x, name=name: found.setdefault(name, []).append(x[0].flatten(0, -2)[::every])
        )
    with torch.inference_mode():
        for batch in batches:
            call(model, batch)
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


def ideal(x: Tensor, weight: Tensor) -> Tensor:
    """Steps in proportion to (E|x| / ‖w‖²)^⅓ of each channel."""
    return (x.abs().mean(0).clamp(min=1e-9) / weight.pow(2).sum(0).clamp(min=1e-12)) ** (1 / 3)


def main() -> None:
    beside = Path(__file__).resolve().parents[2] / "shared" / "assets"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--network", default="vit-tiny", help=f"{', '.join(NETWORKS)}, or transformers:DIR")
    parser.add_argument("--text", help="what a network that reads text is fed with")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--assets", type=Path, default=beside)
    parser.add_argument("--images", type=int, default=32)
    options = parser.parse_args()
    if options.text:
        loaded = load_model(options.network, pretrained=True).with_length(options.length)
        chosen = runs.choose(options.text, options.images, loaded.task)
    else:
        subject = NETWORKS[options.network]
        loaded = subject.load(options.assets)
        chosen = runs.choose(subject.calibration(options.assets), options.images)
    layers = list(inputs_of(loaded.model.eval(), list(runs.Inputs(chosen, loaded)), 1 if options.text else 7))
    torch.manual_seed(0)
    for spikes in SPIKES:
        rows: dict[str, list[Tensor]] = {}
        for name, x, weight in layers:
            x = x - x.median(0).values
            turn = torch.linalg.qr(torch.randn(x.shape[1], x.shape[1]))[0]
            single = torch.ones(())
            half = len(x) // 2
            main = torch.linalg.eigh((x[:half].T @ x[:half]).double())[1].float()
            x = x[half:]
            figures = torch.tensor(
                [error(x, weight, single, spikes), error(x @ turn, weight @ turn, single, spikes),
                 error(x, weight, ideal(x, weight), spikes),
                 error(x @ main, weight @ main, ideal(x @ main, weight @ main), spikes)]
            )  # fmt: skip
            for group in ("all", name.rpartition(".")[2]):
                rows.setdefault(group, []).append((figures[1:] / figures[0]).log())
        for group, logs in rows.items():
            rotated, channel, component = torch.stack(logs).mean(0).exp().tolist()
            print(
                f"{spikes} spikes per neuron, {group}: rotated {rotated:.2f}, a step per channel {channel:.2f}, "
                f"per principal component {component:.2f}"
            )


if __name__ == "__main__":
    main()
