"""The paper's tables beside its printed numbers: accuracy in percent, energy as a ratio; and one that answers its critics."""

from collections.abc import Iterator

from onespike.energy.columns import PAPER, searchable
from onespike.recipe import Recipe, preset
from onespike.studies.reproduce.bench import PRECISIONS, SPREAD, Bench
from onespike.studies.reproduce.study import Row, curves, study

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

OTHER_DATA = (
    "The paper measures on ImageNet-1K; with another network or other images the orderings can be compared, the "
    "numbers cannot."
)
SCORES = ("metric", "score", "error", "kl", *searchable())


def network_of(spec: str) -> str | None:
    """Return which of the paper's networks a model is, or None."""
    name = spec.partition(":")[2]
    return next((network for start, network in NETWORKS.items() if name.startswith(start)), None)


def literal(bench: Bench) -> Recipe:
    """Return the paper's method: its λ and softmax threshold for its networks, a searched λ for others."""
    network = network_of(bench.loaded.spec)
    return bench.searched(preset("sformer")) if network is None else preset(PRESETS[network])


def scores(measured: Row, *first: str) -> Row:
    """Return the columns that most tables have."""
    return {c: measured[c] for c in (*first, *SCORES, *SPREAD) if c in measured}


def row(bench: Bench, case: Row, recipe: Recipe, *first: str) -> Row:
    """Return the row of a recipe: what tells it from the others, and its scores."""
    return {**case, **scores(bench.measure(recipe), *first)}


@study(
    "table-classification",
    "Accuracy on image classification, T = 1",
    "The paper's rows are ImageNet-1K. Its tables differ by 0.1 for ViT-Base/16: SFormer has 70.7 here and in the table of p, "
    "70.6 in that of energy (ECMT at T = 4: 69.9 and 70.0). " + OTHER_DATA,
    task="classification",
)
def classification(bench: Bench) -> Iterator[Row]:
    recipe, network = literal(bench), network_of(bench.loaded.spec)
    ours = row(bench, {"scale": recipe.scale}, recipe, "ann")
    if network is None:
        yield {"network": bench.loaded.spec, **ours}
    for name, score in FIRST_TABLE.items():
        printed = {"network": name, "paper ann": ENERGY[name]["original"][0], "paper score": score}
        yield printed | (ours if name == network else {})


@study(
    "table-detection",
    "Boxes and masks: AP and AP50 of the original and the spiking network, T = 1",
    "The paper's rows are COCO-2017; it prints no AP of its original network there, no energy, and masks in the text "
    "alone. Ours are of another network on other images, so what compares is the loss from `ann` to spiking. λ is "
    "searched by AP (of masks, where there are such) on images of its own.",
    network="scenes",
    task="detection",
    paper_data="COCO-2017",
    essential=(
        "network", "scale", "ann box AP", "box AP", "ann mask AP", "mask AP", PAPER, "paper box AP",
        "paper box AP50", "paper mask AP", *SPREAD,
    ),
)  # fmt: skip
def detection(bench: Bench) -> Iterator[Row]:
    recipe = preset("sformer")
    searched = bench.searched(recipe, objective="ap").scale
    for title, scale in (("λ searched", searched), ("λ of the preset", recipe.scale), ("λ = 1", 1.0)):
        measured = bench.measure(recipe.replace(scale=scale))
        ours = {k: v for k, v in measured.items() if " AP" in k or k in (*searchable(), *SPREAD)}
        yield {"network": f"{bench.loaded.spec}, {title}", "T": 1, "scale": scale, **ours}
    for name, (timesteps, boxes, masks) in DETECTION.items():
        printed: Row = {"network": name, "T": timesteps}
        for shape, figures in (("box", boxes), ("mask", masks)):
            printed |= {f"paper {shape} {k}": v for k, v in zip(PRECISIONS, figures, strict=True)}
        yield printed


@study(
    "table-energy",
    "Accuracy and energy: the original network, ECMT and SFormer over timesteps",
    "`energy` is each method's own count: ECMT counts non-zero spikes (pairs of them in products of two "
    "activations), SFormer counts a spike of size y as y additions. The columns behind it count both alike. "
    + OTHER_DATA,
)
def energy(bench: Bench) -> list[Row]:
    numbers = ENERGY[network_of(bench.loaded.spec) or "ViT-Base/16"]
    base, vit = literal(bench), bench.loaded.spec.startswith("timm:vit_")
    ecmt = "ecmt-vit" if vit else "ecmt"  # its code has constants for networks named ViT, and no others
    rows: list[Row] = []
    for method, recipe, column in (
        *((f"ECMT T={t}", preset(ecmt, steps=t), "pairs") for t in (1, 2, 4)),
        *((f"SFormer T={t}", base.replace(steps=t), PAPER) for t in (1, 2)),
    ):
        measured = bench.measure(recipe)
        rows.append({"method": method, "energy": measured[column], **scores(measured, "ann")})
    rows.insert(0, {"method": "original", "ann": rows[0]["ann"], "score": rows[0]["ann"], "energy": 1.0})
    for row in rows:
        row["paper score"], row["paper energy"] = numbers[row["method"]]
    return rows


@study(
    "table-ablation",
    "Scaling strategy × fire function, T = 1",
    "Unscaled is λ = 1; scaled is λ searched for each fire function without labels, on images of its own. The softmax is never scaled. "
    "The paper's column is EVA on ImageNet-1K. " + OTHER_DATA,
)
def ablation(bench: Bench) -> Iterator[Row]:
    for (kind, scaled), score in ABLATION.items():
        recipe = preset("sformer", levels=f"{kind}:8", scale=1.0)
        recipe = bench.searched(recipe) if scaled else recipe
        variant = f"{'SFN' if kind == 'mixed' else kind}, {'λ searched' if scaled else 'λ = 1'}"
        yield row(bench, {"variant": variant, "scale": recipe.scale}, recipe) | {"paper score": score}


@study(
    "table-percentile",
    "The normalization scale p, T = 1",
    "λ is the same in all rows. The paper's columns are ViT-Base/16 on ImageNet-1K. " + OTHER_DATA,
    draw=curves("percentile", "score", PAPER),
)
def percentile(bench: Bench) -> Iterator[Row]:
    base = literal(bench)
    for p, (score, ratio) in PERCENTILE.items():
        ours = row(bench, {"percentile": p, "scale": base.scale}, base.replace(percentile=p), "ann")
        yield {**ours, "paper score": score, "paper counts": ratio}


@study(
    "table-quantization",
    "Is it just quantization? Uniform n-bit activations against SFN at equal energy",
    "Each n-bit row is followed by SFN with the λ that spends as many additions (counts). `onespike evaluate RUN --compare` "
    "measures integer networks beside a run.",
    draw=curves(PAPER, "score", by="method"),
)
def quantization(bench: Bench) -> Iterator[Row]:
    for bits in (3, 4, 5, 6, 8):
        uniform = preset("uniform", levels=f"bits:{bits}")
        yield row(bench, {"method": "uniform", "bits": bits, "scale": uniform.scale}, uniform, "ann")
        for levels in ("mixed:8", "mixed:64+8"):
            sfn = preset("sformer", levels=levels)
            equal = bench.at_energy(sfn, PAPER, bench.measure(uniform)[PAPER])
            yield row(bench, {"method": f"SFN {levels}", "bits": None, "scale": equal.scale}, equal, "ann")
