"""A metric of your own: how well do the probabilities of both networks match their accuracy?

The bundled network and its test images; anything with update() and compute() is a metric.
"""

import torch

import onespike
from onespike import runs
from onespike.adapters import load_model
from onespike.tasks import batches, limit, list_images


class Confidence:
    """Mean confidence minus accuracy of each network, in percent: 0 is well calibrated."""

    def __init__(self) -> None:
        self.gaps = {"ann": [], "snn": []}

    def update(self, ann: torch.Tensor, snn: torch.Tensor, labels: torch.Tensor) -> None:
        for name, logits in (("ann", ann), ("snn", snn)):
            confidence, answer = logits.softmax(-1).max(-1)
            self.gaps[name] += (confidence - (answer == labels).float()).tolist()

    def compute(self) -> dict[str, float]:
        return {name: 100 * sum(gaps) / len(gaps) for name, gaps in self.gaps.items()}


loaded = load_model("bundled:cifar10-vit")
calibration = limit(list_images("bundled:cifar10-calibration"), 16)
pair = runs.convert_network(loaded, calibration, onespike.preset("sformer"))
test = limit(list_images("bundled:cifar10-test"), 32)
result = onespike.evaluate(pair.ann, pair.snn, batches(test, loaded.reading.transform, 16), Confidence())
print(f"overconfidence: original {result.metrics['ann']:+.1f} %, spiking {result.metrics['snn']:+.1f} %")
