"""NeuroBench with graded spikes: additions where its own metric counts multiply-accumulates (`pip install neurobench`).

NeuroBench looks at the input of a layer, which in a converted network is what the neuron inside receives, and takes it
for spikes only if it is binary. `SpikeAdditions` reports what the ledger counts, per input. It runs the network once
more for each batch.
"""

from __future__ import annotations

import torch
from neurobench.benchmarks import Benchmark
from neurobench.metrics.abstract.workload_metric import AccumulatedMetric
from neurobench.metrics.workload import SynapticOperations
from neurobench.models import TorchModel
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import onespike


class SpikeAdditions(AccumulatedMetric):
    """Additions per input, with a spike of size y as y additions or as its signed binary digits; MACs that do not spike."""

    def __init__(self):
        super().__init__()
        self.reset()

    def reset(self):
        self.ledger = onespike.Ledger()

    def __call__(self, model, preds, data):
        with torch.no_grad(), onespike.metered(model.__net__(), self.ledger):
            model.__net__()(data[0])
        return self.compute()

    def compute(self):
        inputs = max(self.ledger.inputs, 1)
        return {
            "additions, counts": self.ledger.accumulates("counts") / inputs,
            "additions, binary": self.ledger.accumulates("binary") / inputs,
            "multiply-accumulates": (self.ledger.analog_products + self.ledger.edge_products) / inputs,
            "dense": self.ledger.macs / inputs,
        }


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 16 * 16, 10),
    ).eval()  # fmt: skip
    images = torch.rand(32, 3, 16, 16)
    snn = onespike.spike(model, [images], onespike.preset("sformer"))
    loader = DataLoader(TensorDataset(images, torch.zeros(32, dtype=torch.long)), batch_size=8)
    metrics = [SynapticOperations, SpikeAdditions]
    result = Benchmark(TorchModel(snn), loader, [], [], [[], metrics]).run(quiet=True)
    for name, value in result.items():
        print(name, value)
