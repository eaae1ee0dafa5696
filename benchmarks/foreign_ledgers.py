"""Our operation counts beside those of other packages, on the same spikes.

    python benchmarks/foreign_ledgers.py --packages DIR [--json FILE]

DIR holds SpikingJelly 2, installed apart since it asks for torchaudio:

    pip install --no-deps --target DIR spikingjelly==2.0.0 loguru

Every product of spikes and weights is given to SpikingJelly's counters spike by spike: a count of 3 is three binary
tensors, as in the column `counts`, or its signed binary digits, as in `binary`. A chain of convolutions with one level
has a twin of SpikingJelly's own neurons, which its Lemaire and NeuroMC estimators read.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import onespike
from onespike.adapters import load_model
from onespike.energy.columns import READINGS
from onespike.neurons import Neuron
from onespike.sites import Operand, Visitor
from onespike.tasks import list_images


def planes(counts: Tensor, reading: str) -> list[Tensor]:
    """Return binary tensors, each with at most one spike per element, that add up to what a reading counts."""
    left, binary = READINGS[reading].additions(counts).round().long(), []
    while bool(left.any()):
        binary.append((left > 0).float())
        left = (left - 1).clamp(min=0)
    return binary


class SpikeBySpike(Visitor):
    """Give every product of spikes and weights to SpikingJelly's counters, one binary tensor at a time."""

    def __init__(self) -> None:
        self.additions, self.macs = Counter[str](), 0

    def visit(self, operand: Operand, x: Tensor) -> Tensor:
        from spikingjelly.activation_based import op_counter

        neuron = operand.neuron()
        if not isinstance(neuron, Neuron) or neuron.dense:
            return operand.value(x)
        counts, value = operand.fire(x)
        if operand.site.operation not in ("linear", "conv"):
            return value
        for reading in ("counts", "binary"):
            for plane in planes(counts, reading):
                additions, macs = op_counter.ACCounter(), op_counter.MACCounter()
                with op_counter.DispatchCounterMode([additions, macs]):
                    operand.product.multiply(plane.to(x), operand.product.operands["weight"])
                self.additions[reading] += additions.get_total()
                self.macs += macs.get_total()
        return value


def spike_by_spike(snn: nn.Module, images: Tensor) -> dict[str, Any]:
    """Additions of products with weights by our ledger and by SpikingJelly's counters."""
    ledger = onespike.Ledger()
    with torch.no_grad(), onespike.metered(snn, ledger):
        snn(images)
    rows = [r for r in ledger.sites.values() if r.spiking and r.site.operation in ("linear", "conv")]
    visitor = SpikeBySpike()
    with torch.no_grad(), onespike.visiting(snn, visitor):
        snn(images)
    return {
        reading: {
            "onespike": sum(row.additions[reading] for row in rows),
            "SpikingJelly": visitor.additions[reading],
        }
        for reading in ("counts", "binary")
    } | {"MACs that SpikingJelly saw": visitor.macs}


def chain() -> tuple[nn.Module, nn.Module, Tensor]:
    """A chain of convolutions with one level, and its twin of SpikingJelly's neurons, the steps in their weights."""
    from spikingjelly.activation_based.neuron import IFNode

    torch.manual_seed(0)
    channels = (3, 16, 32, 32)
    layers = [nn.Conv2d(c, d, 3, stride=1 + (c == 16), padding=1, bias=False) for c, d in pairwise(channels)]
    model = nn.Sequential()
    for layer in (*layers, nn.Conv2d(32, 10, 1, bias=False)):
        model.extend([layer, nn.ReLU()])
    model = model[:-1].eval()
    images = torch.rand(1, 3, 32, 32)
    recipe = onespike.preset("sformer").replace(levels="bits:1", io="spiking")
    snn = onespike.spike(model, [images], recipe)
    twin = nn.Sequential()
    for layer in snn:
        if isinstance(layer, nn.Conv2d):
            neuron = layer.neurons["conv0_input"]
            plain = copy.deepcopy(layer)
            onespike.revert_(plain)
            if isinstance(neuron, Neuron):
                step = float(neuron.code().steps[0])
                twin.append(IFNode(v_threshold=step / 2, v_reset=None))
                plain.weight.data *= step
            twin.append(plain)
    return snn, twin.eval(), images


def estimates() -> dict[str, Any]:
    """What SpikingJelly's estimators say of the chain, beside our ledger."""
    from spikingjelly.activation_based import functional, op_counter

    snn, twin, images = chain()
    ledger = onespike.Ledger()
    with torch.no_grad(), onespike.metered(snn, ledger):
        difference = float((snn(images) - twin(images)).abs().max())
    functional.reset_net(twin)
    lemaire = op_counter.estimate_lemaire_energy(twin, images)
    functional.reset_net(twin)
    neuromc = op_counter.estimate_neuromc_runtime_energy(twin, images)
    spikes = sum(row.sent["counts"] for row in ledger.sites.values() if row.spiking)
    return {
        "largest difference of the twin's output": difference,
        "onespike": {
            "additions": ledger.accumulates("counts"),
            "spikes": spikes,
            "MACs, dense": ledger.macs,
            "MACs, analog": ledger.analog_products,
            "pJ, counts": ledger.original_pj() * ledger.ratio("counts"),
            "pJ, strict": ledger.original_pj() * ledger.ratio("strict"),
        },
        "Lemaire": {**lemaire.counts, **lemaire.breakdown_pj},
        "NeuroMC": {
            "MACs": neuromc.primitive_counts["totals"]["mac"],
            "pJ, compute": neuromc.energy_compute_pj,
            "pJ, memory": neuromc.energy_memory_pj,
        },
    }


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    """The bundled ViT and a ResNet with random weights, both by the paper's method, and four images."""
    loaded = load_model("bundled:cifar10-vit")
    images = next(iter(loaded.batches(list_images("bundled:cifar10-calibration"), 64)))[0]
    torch.manual_seed(0)
    residual = load_model("torchvision:resnet18", random_weights=True).model.eval()
    recipe = onespike.preset("sformer")
    return {
        "bundled:cifar10-vit": (onespike.spike(loaded.model, [images], recipe), images[:4]),
        "torchvision:resnet18, random weights": (onespike.spike(residual, [images], recipe), images[:4]),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--packages", type=Path, required=True, help="where SpikingJelly 2 is installed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(options.packages))
    result: dict[str, Any] = {name: spike_by_spike(*pair) for name, pair in networks().items()}
    result["chain of convolutions, one level"] = estimates()
    text = json.dumps(result, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
