"""Named starting points of recipes: what each is, what it was measured to lose, and the fields that it sets."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """What a preset is, its measured loss and energy with the page that states them, and the fields that it sets."""

    about: str
    measured: str = ""
    page: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


ECMT = {"levels": "exponential:4", "steps": 4, "scale": 1.0, "softmax": 0.0125}
W8ASPIKE = {"neuron": "mean", "levels": "bits:7", "scale": 1 / 3, "fixed": (("*", 1.0, 1.0),)}
REPRODUCTION = "docs/reproduction.md"

FAST = ("nearest", "layout", "positions", "center", "allocate", "weigh", "correct", "refit")
INTEGER = {"io": "int8", "step_digits": 2}  # edges in 8 bits, neurons that shift and add
USUAL = {"budget": 0.2, "energy": "binary", **INTEGER}
TOLERANT = {"max_drop": 0.005, **USUAL}  # the budget is the most: less where this expected loss allows it
DEFAULT = "fast"  # of `onespike convert` and `onespike.spike`; a bare `Recipe()` is the paper's


def _of_paper(network: str, scale: float, softmax: float, accuracy: str = "") -> Preset:
    about = f"The paper's λ and softmax threshold for {network}."
    measured = f"Not measured here; the paper has {accuracy}." if accuracy else ""
    return Preset(about, measured, accuracy and REPRODUCTION, {"scale": scale, "softmax": softmax})


PRESETS: dict[str, Preset] = {
    "fast": Preset(
        "The default: passes that take minutes; a binary ratio of at most 0.2 of all MACs, and the least that is expected to lose 0.5 %.",
        "ViT-Tiny: 75.8 to 75.6 % (−0.2 ± 0.5; on integers −0.6 ± 0.5) at counts 0.638, binary 0.200; all charged, 0.031 beside 0.075 of plain int8.",
        "docs/energy.md",
        {"passes": FAST, **TOLERANT},
    ),
    "best": Preset(
        "The same and `tune`, which learns; ViT-Tiny: about ten minutes.",
        "ViT-Tiny with a counts budget of 0.15: 6.1 points lost (75.8 to 69.7 %) at counts 0.148, binary 0.100 of all MACs.",
        "docs/fronts.md",
        {"passes": (*FAST, "tune"), **TOLERANT},
    ),
    "text": Preset(
        "For networks that read text: the passes that were best on them; minutes.",
        "SmolLM2-135M: perplexity 38.49 to 38.55 (+0.06 ± 0.19) at a binary ratio of 0.199 of all MACs (0.250 of what spikes).",
        "docs/language.md",
        {"passes": ("thrifty", "layout", "center", "allocate"), **USUAL},
    ),
    "sformer": Preset(
        "The paper's method to the letter; seconds.",
        "ViT-Tiny: 20.2 points lost (75.8 to 55.5 ± 1.3 % over four calibrations) at counts 0.273, binary 0.156 of all MACs.",
        "docs/fronts.md",
    ),
    "chip": Preset(
        "For chips that add: spikes of few bits and few additions, one side behind ReLUs, biases only; minutes.",
        "Bundled ResNet-18: 91.4 to 91.5 % (+0.1 ± 0.3) at counts 0.098, binary 0.058; bundled ViT: 83.3 to 83.1 % (−0.2 ± 0.8) at counts 0.100, binary 0.070 of all MACs.",
        "docs/passes.md",
        {
            "passes": FAST,
            "budget": 0.1,
            "energy": "counts",
            "payload_bits": 4,
            "centers": "biases",
            **INTEGER,
        },
    ),
    "paper-vit-base": _of_paper("ViT-Base/16", 0.252, 0.0035, "80.8 to 70.6 or 70.7 %"),
    "paper-vit-large": _of_paper("ViT-Large/16", 0.313, 0.0036, "84.9 to 82.4 %"),
    "paper-eva": _of_paper("EVA", 0.360, 0.0035, "89.6 to 88.8 %"),
    "paper-eva-detection": _of_paper("boxes by EVA", 0.350, 0.0036),
    "paper-eva-segmentation": _of_paper("masks by EVA", 0.333, 0.0036),
    "if": Preset(
        "A baseline: rate coding by integrate-and-fire over 32 steps.",
        "Bundled ResNet-18, neurons in place of ReLUs: 92.5 to 74.5 %. ResNet-18 at batch 1: 48.3 times the time.",
        f"{REPRODUCTION}, docs/speed.md",
        {"neuron": "if", "levels": "1,", "steps": 32, "percentile": 0.0, "scale": 1.0},
    ),
    "mtn": Preset(
        "A baseline: integrate-and-fire over 16 steps as one step with 16 thresholds.",
        "Bundled ResNet-18, neurons in place of ReLUs: 92.5 to 93.0 %.",
        REPRODUCTION,
        {"neuron": "mtn", "levels": "linear:8", "percentile": 0.0, "scale": 1.0},
    ),
    "ecmt": Preset(
        "A baseline: ECMT, 8 exponential thresholds over 4 steps.",
        "Bundled ViT: 82.6 to 80.4 % at counts 0.575, binary 0.336 of all MACs.",
        REPRODUCTION,
        ECMT,
    ),
    "ecmt-vit": Preset(
        "ECMT with its authors' constants, for timm's ViTs and no other network.",
        "ViT-Tiny: 74.6 to 56.0 % at counts 0.773, binary 0.437 of all MACs.",
        REPRODUCTION,
        {**ECMT, "fixed": (("blocks.*.mlp.fc2:linear0_input", 0.25, 0.08),)},
    ),
    "uniform": Preset(
        "A baseline: plain 8-bit quantization.",
        "Bundled ViT: 82.6 to 82.8 % at counts 2.71, binary 0.318 of all MACs.",
        REPRODUCTION,
        {"neuron": "uniform", "levels": "bits:8", "percentile": 0.0, "scale": 1.0},
    ),
    "w8aspike": Preset(
        "A baseline: SpikingBrain's W8ASpike, a third of each token's mean magnitude as its step.",
        settings={**W8ASPIKE, "include": ("*:linear*_input",)},
    ),
}
"""Named starting points: the usual ones first, then that for chips, the paper's settings for its networks and baselines."""
