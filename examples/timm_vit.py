"""A vision transformer from timm: calibrate, convert, compare, count.

Random weights, so that this runs anywhere in seconds; with pretrained=True and images of your own it is the real thing.
"""

import timm
import torch

import onespike

torch.manual_seed(0)
model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=3).eval()
images = torch.randn(16, 3, 64, 64)

thresholds = onespike.calibrate(model, images.split(8))
snn = onespike.convert(model, thresholds, onespike.preset("sformer", scale=0.25))
with torch.inference_mode(), onespike.metered(snn) as ledger:
    error = (snn(images) - model(images)).norm() / model(images).norm()

spiking = sum(row["spikes"] for row in onespike.table(snn))
print(f"{spiking} of {len(thresholds)} sites spike, relative error {error:.2f}")
print({name: round(ratio, 3) for name, ratio in ledger.ratios().items()})
