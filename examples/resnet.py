"""A ResNet from torchvision: BatchNorm is folded, ReLU sites have a positive side only.

Random weights, so that this runs anywhere in seconds; torchvision's own weights load with weights="DEFAULT".
"""

import torch
import torchvision

import onespike

torch.manual_seed(0)
model = torchvision.models.resnet18(num_classes=10).eval()
images = torch.randn(16, 3, 64, 64)

thresholds = onespike.calibrate(model, [images])
snn = onespike.convert(model, thresholds)
with torch.inference_mode():
    for scale in (1.0, 0.5, 0.25, 0.1):
        onespike.set_scale_(snn, scale)
        with onespike.metered(snn) as ledger:
            error = (snn(images) - model(images)).norm() / model(images).norm()
        print(f"λ = {scale:<4}  relative error {error:.3f}  energy {ledger.ratio('counts'):.3f}")

onespike.revert_(snn)
with torch.inference_mode():
    assert torch.equal(snn(images), model(images))
