"""The paper's printed numbers: accuracy in percent, energy as a ratio."""

from __future__ import annotations

ENERGY = {
    "ViT-Base/16": {
        "original": (80.8, 1.0), "ECMT T=1": (0.2, 0.06), "ECMT T=2": (20.8, 0.19), "ECMT T=4": (70.0, 0.51),
        "SFormer T=1": (70.6, 0.17), "SFormer T=2": (77.6, 0.46),
    },
    "ViT-Large/16": {
        "original": (84.9, 1.0), "ECMT T=1": (3.6, 0.05), "ECMT T=2": (75.3, 0.17), "ECMT T=4": (83.2, 0.42),
        "SFormer T=1": (82.4, 0.15), "SFormer T=2": (84.2, 0.36),
    },
    "EVA": {
        "original": (89.6, 1.0), "ECMT T=1": (2.4, 0.06), "ECMT T=2": (84.0, 0.20), "ECMT T=4": (88.6, 0.49),
        "SFormer T=1": (88.8, 0.19), "SFormer T=2": (89.4, 0.47),
    },
}  # fmt: skip
"""Accuracy and energy ratio on ImageNet-1K, by network and method."""

FIRST_TABLE = {"ViT-Base/16": 70.7, "ViT-Large/16": 82.4, "EVA": 88.8}
"""Accuracy of SFormer at T = 1 in the first table, which has 0.1 more for ViT-Base/16 than that of energy."""

ABLATION = {
    ("linear", False): 4.4, ("exponential", False): 1.6, ("mixed", False): 4.9,
    ("linear", True): 84.8, ("exponential", True): 65.7, ("mixed", True): 88.8,
}  # fmt: skip
"""Accuracy of EVA on ImageNet-1K at T = 1, by fire function and whether λ is tuned."""

PERCENTILE = {
    0.0: (0.2, 0.16), 0.5: (63.7, 0.15), 1.0: (70.7, 0.17), 1.5: (70.8, 0.20), 2.0: (71.2, 0.21), 2.5: (70.9, 0.22),
}  # fmt: skip
"""Accuracy and energy ratio of ViT-Base/16 on ImageNet-1K, by p."""

DETECTION = {
    "SFormer, EVA": (1, (60.3, 78.2), (50.7, 75.1)),
    "SpikeDet-Large": (1, (49.6, 66.5), (None, None)), "SpikeYOLO": (1, (48.9, 66.2), (None, None)),
    "SUHD, YOLOv5s": (4, (None, 54.6), (None, None)), "Spike calibration, ResNet-50": (512, (None, 45.4), (None, None)),
}  # fmt: skip
"""Timesteps, then AP and AP50 of boxes and of masks on COCO-2017, by method; the masks are from the text."""

NETWORKS = {"vit_base_patch16": "ViT-Base/16", "vit_large_patch16": "ViT-Large/16", "eva_giant": "EVA"}
"""The prefixes of timm's names for the paper's networks."""

PRESETS = {"ViT-Base/16": "paper-vit-base", "ViT-Large/16": "paper-vit-large", "EVA": "paper-eva"}
"""The preset with the paper's λ and softmax threshold for each network."""


def network_of(spec: str) -> str | None:
    """Return which of the paper's networks a model is, or None."""
    name = spec.partition(":")[2]
    return next((network for start, network in NETWORKS.items() if name.startswith(start)), None)
