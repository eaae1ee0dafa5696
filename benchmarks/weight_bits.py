"""Weights of fewer bits behind spikes: rounded to the nearest, and with each error passed on to the inputs that follow.

    python benchmarks/weight_bits.py RUN --data DIR --limit 500 [--bits 8 6 4] [--out FILE]

The second is GPTQ (Frantar et al., 2023): inputs are rounded one after the other, and the error of each is taken back by those
that are not rounded yet, as the second moments H of the spike counts say. One scale per output, clipped as far as that lowers the
squared error; H is of the run's calibration inputs, in the spiking network before anything is rounded. Edges keep 8 bits.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import records
import torch
import torch.nn.functional as F
from records import Column, Figure
from torch import Tensor, nn

from onespike import runs
from onespike.conversion.weights import along
from onespike.deploy.folding import by_channel, common_units
from onespike.deploy.products import units_of
from onespike.runs.forms import real_inputs
from onespike.runtime.batches import call
from onespike.runtime.forward import evaluating

DAMPING, BLOCK, PLACES = 1e-2, 128, 2048
CLIPS = tuple(k / 20 for k in range(20, 7, -1))


class Layer:
    """A weight behind a neuron, with the neuron's units folded in as integer inference folds them."""

    def __init__(self, module: Any, neuron: Any) -> None:
        self.module, self.neuron, self.dims = module, neuron, module.weight.dim() - 2
        self.groups = getattr(module, "groups", 1)
        code = by_channel(neuron.code(), module.weight.shape[1] * self.groups, -1 - self.dims)
        times = None if code is None else common_units(*code.units())
        if times is None:
            raise ValueError("its steps have no common unit")
        up, down = code.units()
        self.offset, self.times = code.offset, times
        self.units = along(torch.where(up > 0, up / times[0], down / times[1]), module.weight, self.groups)
        self.moments: Tensor | float = 0.0

    def seen(self, module: Any, args: tuple[Tensor, ...]) -> None:
        """Add the second moments of a batch."""
        x = units_of(self.neuron.counts(args[0]), *self.times, self.dims)
        if self.dims:
            part = {k: getattr(module, k) for k in ("dilation", "padding", "stride")}
            x = F.unfold(x, module.kernel_size, **part).mT
        rows = x.reshape(-1, x.shape[-1])
        rows = rows[torch.randperm(len(rows))[:PLACES]]
        with torch._C.DisableTorchFunction():  # this product does not belong to the network
            self.moments = self.moments + rows.T @ rows

    def rounded(self, bits: int, compensated: bool) -> tuple[Tensor, Tensor | None]:
        """Return the weight after rounding, and what is added to the bias."""
        exact = self.module.weight.detach().double()
        weight = (exact * self.units).flatten(1)
        largest = 2 ** (bits - 1) - 1
        scale = _scales(weight, largest)
        if compensated:
            whole = compensate(weight, scale, largest, torch.as_tensor(self.moments).double())
        else:
            whole = (weight / scale).round().clamp(-largest, largest)
        units = self.units.expand_as(exact)
        value = torch.where(units > 0, (whole * scale).view_as(exact) / units.clamp(min=1e-300), exact)
        if self.offset is None:
            return value.float(), None
        return value.float(), ((exact - value) * along(self.offset, exact, self.groups)).flatten(1).sum(1)


def _scales(weight: Tensor, largest: int) -> Tensor:
    """Return the scale of each output that has the least squared error."""
    peak = weight.abs().amax(1, keepdim=True).clamp(min=1e-30) / largest
    tried = torch.stack([peak * clip for clip in CLIPS])
    errors = [((weight / s).round().clamp(-largest, largest) * s - weight).square().sum(1) for s in tried]
    return tried.gather(0, torch.stack(errors).argmin(0)[None, :, None]).squeeze(0)


def compensate(weight: Tensor, scale: Tensor, largest: int, moments: Tensor) -> Tensor:
    """Return integers near weight / scale, rounded input by input; what is not rounded yet takes each error back."""
    moments = moments + DAMPING * moments.diagonal().mean() * torch.eye(len(moments), dtype=moments.dtype)
    order = moments.diagonal().argsort(descending=True)
    upper = torch.linalg.cholesky(
        torch.cholesky_inverse(torch.linalg.cholesky(moments[order][:, order])), upper=True
    )
    rest, whole = weight[:, order].clone(), torch.zeros_like(weight)
    for start in range(0, rest.shape[1], BLOCK):
        end = min(start + BLOCK, rest.shape[1])
        errors = torch.zeros_like(rest[:, start:end])
        for n in range(start, end):
            whole[:, n] = (rest[:, n] / scale[:, 0]).round().clamp(-largest, largest)
            errors[:, n - start] = (rest[:, n] - whole[:, n] * scale[:, 0]) / upper[n, n]
            rest[:, n + 1 : end] -= errors[:, n - start, None] * upper[n, n + 1 : end]
        rest[:, end:] -= errors @ upper[start:end, end:]
    result = torch.empty_like(whole)
    result[:, order] = whole
    return result


def layers(network: nn.Module) -> Iterator[Layer]:
    for module in network.modules():
        owner, weight = module._modules.get("neurons"), module._parameters.get("weight")
        if owner is None or not isinstance(module, (nn.Linear, nn.Conv2d)) or weight is None:
            continue
        neuron = next((n for key, n in owner._modules.items() if key.endswith("0_input")), None)
        if getattr(neuron, "coded", False) and not neuron.dense and getattr(module, "groups", 1) == 1:
            yield Layer(module, neuron)


def right(network: nn.Module, batches: list[tuple[Any, Tensor]]) -> Tensor:
    with torch.inference_mode(), evaluating(network):
        return torch.cat([(call(network, x).argmax(-1) == y).float() for x, y in batches])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 6, 4])
    parser.add_argument("--out", type=Path)
    records.option(parser)
    args = parser.parse_args()
    torch.manual_seed(0)
    pair = runs.load(args.run)
    items = runs.choose(args.data, args.limit, pair.loaded.task)
    batches = list(pair.loaded.batches(items, 25))
    ann, snn = right(pair.ann, batches), right(pair.snn, batches)
    measured = list(layers(pair.snn))
    hooks = [layer.module.register_forward_pre_hook(layer.seen) for layer in measured]
    with torch.no_grad(), evaluating(pair.snn):
        for batch in real_inputs(pair, None, 128, 16):
            call(pair.snn, batch)
    for hook in hooks:
        hook.remove()
    print(
        f"{args.run}: {len(batches)} batches, original {ann.mean():.1%}, spiking {snn.mean():.1%}, {len(measured)} weights"
    )
    rows = []
    before = [copy.deepcopy(layer.module.state_dict()) for layer in measured]
    for bits in args.bits:
        for compensated in (False, True):
            for layer in measured:
                weight, moved = layer.rounded(bits, compensated)
                layer.module.weight.data = weight
                if moved is not None and layer.module.bias is not None:
                    layer.module.bias.data += moved.float()
            hits = right(pair.snn, batches)
            for layer, state in zip(measured, before, strict=True):
                layer.module.load_state_dict(state)
            change = hits - snn
            error = float(change.std() / len(change) ** 0.5)
            row = {
                "bits": bits,
                "compensated": compensated,
                "right": float(hits.mean()),
                "difference": float(change.mean()),
                "error": error,
            }
            rows.append(row)
            print(
                f"{bits} bits, {'compensated' if compensated else 'nearest':11} {hits.mean():.1%}  {change.mean():+.1%} ± {error:.1%}",
                flush=True,
            )
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if args.record:
        cells: list[dict[str, Any]] = [{"weights": "as they are", "top1": 100 * float(snn.mean())}]
        for row in rows:
            label = f"{row['bits']} bits, {'compensated' if row['compensated'] else 'to the nearest'}"
            gap = Figure(100 * row["difference"], error=100 * row["error"])
            cells.append({"weights": label, "top1": 100 * row["right"], "difference": gap})
        columns = {
            "weights": Column("weights behind spikes"),
            "top1": Column("top-1", "%", ".1f"),
            "difference": Column("minus the spiking network", "", "+.1f"),
        }
        about = f"{args.run.name}, {len(snn)} images; the original has {ann.mean():.1%}."
        records.write(args.record, cells, about=about, columns=columns)


if __name__ == "__main__":
    main()
