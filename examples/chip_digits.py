"""A network of 28 × 28 for chips: train, convert with preset `chip`, and write what tool chains read: python … OUT.

scikit-learn's 1,797 digits, enlarged; a minute on one core. OUT then holds `digits.integers`, `digits.onnx` (qonnx) and `digits.nir`.
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import onespike

FORMATS = {"integers": "digits.integers", "qonnx": "digits.onnx", "nir": "digits.nir"}


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Return pixels from 0 to 1 and labels."""
    digits = load_digits()
    pixels = torch.from_numpy(digits.images).float()[:, None] / 16
    return nn.functional.interpolate(pixels, (28, 28), mode="bilinear"), torch.from_numpy(digits.target)


def trained(x: torch.Tensor, y: torch.Tensor, epochs: int = 12) -> nn.Module:
    """Return a small network: convolutions, BatchNorm and two linear maps."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(576, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    learning = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(32):
            learning.zero_grad()
            nn.functional.cross_entropy(model(x[part]), y[part]).backward()
            learning.step()
    return model.eval()


def main(out: Path) -> None:
    (x, y), seen = images(), 1000
    model = trained(x[:seen], y[:seen])
    snn = onespike.spike(model, x[:128].split(32), onespike.preset("chip", io="spiking"))
    with torch.inference_mode():
        for name, network in (("original", model), ("spiking", snn)):
            print(
                f"{name:9} {(network(x[seen:]).argmax(1) == y[seen:]).float().mean():.1%} of {len(x) - seen} right"
            )
        with onespike.metered(snn) as ledger:
            snn(x[seen:])
    print(f"energy    counts {ledger.ratio('counts'):.3f}, binary {ledger.ratio('binary'):.3f}")
    out.mkdir()
    for format, name in FORMATS.items():
        done = onespike.export(snn, format, out / name, list(x[seen : seen + 16].split(8)))
        print(f"{name:15} {done.bytes / 1e3:.0f} kB, {done.runtime}: {done.comparison}", *done.notes)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
