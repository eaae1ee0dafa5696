"""Sweeps: λ as in the paper's figure, the number of levels, and the softmax threshold."""

from __future__ import annotations

from onespike.energy.columns import PAPER
from onespike.errors import DataError
from onespike.recipe import preset
from onespike.studies.reproduce.bench import Bench
from onespike.studies.reproduce.draw import bars, curves
from onespike.studies.reproduce.study import Row, study
from onespike.studies.reproduce.tables import literal, shown

SWEPT_SCALES = (1.0, 0.7, 0.5, 0.36, 0.252, 0.18, 0.125, 0.09, 0.06)


@study(
    "figure-scale",
    "Accuracy and energy over the scaling factor λ",
    curves("scale", "score", PAPER, log=True),
    "The paper's figure has no table; it states λ = 0.252 as a good compromise for ViT-Base/16.",
)
def scale(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    for value in SWEPT_SCALES:
        measured = bench.measure(literal(bench).replace(scale=value))
        rows.append({"scale": value, "ann": measured["ann"], **shown(measured)})
    return rows


@study(
    "sweep-levels",
    "How many levels: M of eq. 12, and N of linear and exponential fire functions",
    curves("levels per side", "score", PAPER, by="fire function"),
    "λ is searched for each row, without labels. With one more level per side, a spike costs no more additions unless it "
    "is fired.",
)
def levels(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    for kind in ("mixed", "linear", "exponential"):
        for number in (2, 4, 8) if kind != "mixed" else (2, 4, 6, 8, 10):
            recipe = preset("sformer", levels=f"{kind}:{number}")
            recipe = recipe.replace(scale=bench.searched(recipe, trials=8)["scale"])
            measured = bench.measure(recipe)
            rows.append(
                {"fire function": kind, "M": number, "levels per side": 2 * number, "scale": recipe.scale,
                 "ann": measured["ann"], **shown(measured)}
            )  # fmt: skip
    return rows


@study(
    "sweep-softmax-threshold",
    "The softmax threshold: the largest output or a percentile of them, per site, per head or for the model",
    bars("threshold", "score", PAPER),
    "Eq. 16 divides the largest softmax output seen by the largest level, so one outlier sets the step. A percentile "
    "makes the step finer and clips what is above.",
)
def softmax(bench: Bench) -> list[Row]:
    base = literal(bench)
    if not any(threshold.role == "softmax" for threshold in bench.calibrated(base).values()):
        raise DataError(f"sweep-softmax-threshold: {bench.loaded.spec} has no softmax. Give a transformer.")
    rows: list[Row] = []
    for title, value in (
        ("largest, per site", "site"), ("largest, per head", "head"), ("largest, the model", "model"),
        ("percentile 0.01", "percentile:0.01"), ("percentile 0.1", "percentile:0.1"),
        ("percentile 1", "percentile:1"), ("paper, 0.0035", 0.0035),
    ):  # fmt: skip
        measured = bench.measure(base.replace(softmax=value))
        rows.append({"threshold": title, "ann": measured["ann"], **shown(measured)})
    return rows
