"""Measured results → at most five findings, worst first, each with its share of the loss and a command."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from onespike.diagnosis.measurement import PROBE_IMAGES, VARIANTS, Checkup, checkup
from onespike.energy.columns import beside
from onespike.errors import UsageError
from onespike.runs import Progress, no_progress
from onespike.runs.in_memory import in_memory
from onespike.tasks import Task

MOST_FINDINGS = 5
FEW_IMAGES = 16
"""Fewer calibration images than this are too few for reliable thresholds."""
FAR_SCALE = 4.0
"""λ is off its optimum if the divergence is this many times the best of the sweep, and answers change."""
ALARMING = 10.0
"""A value this many times the largest level ruins everything after it."""
WORTH = 0.1
"""A remedy is listed if it removes this share of the divergence."""


@dataclass(frozen=True)
class Finding:
    """One thing that costs accuracy.

    Attributes:
        cause: its short name.
        title: the finding in words.
        evidence: the figures behind it.
        share: the estimated share of the loss of accuracy; None if unknown.
        command: the command to try, or the call in Python.
        alarming: whether it is a mistake in the setup; the others are ways to gain more.
    """

    cause: str
    title: str
    evidence: str
    share: float | None
    command: str
    alarming: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def doctor(
    model: nn.Module,
    snn: nn.Module,
    loader: Iterable[tuple[Any, Any]],
    *,
    images: int = PROBE_IMAGES,
    task: Task | None = None,
    progress: Progress = no_progress,
) -> list[Finding]:
    """Return what costs a converted network accuracy, worst first, each with a call to try.

    Args:
        model: the original network.
        snn: its converted copy.
        loader: (inputs, labels) that calibration did not see; labels may be None.
        images: how many of them are measured in many variants.
        task: the meaning of the output; classification by default.
        progress: progress(title, total) wraps the batches of a long stage.
    """
    pair, items = in_memory(model, snn, loader, task)
    if min(len(items), images) < 2:
        raise UsageError("doctor: at least 2 inputs are needed. Give more.")
    return diagnose(checkup(pair, items, None, images=images, progress=progress))


Rule = Callable[[Checkup], Iterator[Finding]]
RULES: list[Rule] = []


def diagnose(measured: Checkup) -> list[Finding]:
    """Return what costs accuracy: mistakes, then unused passes, then other gains, the larger share first."""
    found = [finding for rule in RULES for finding in rule(measured)]
    return sorted(found, key=lambda f: (not f.alarming, f.cause != "passes", -(f.share or 0.0)))[
        :MOST_FINDINGS
    ]


def split(measured: Checkup) -> tuple[float, float]:
    """Return shares of the loss: before conversion (the original is worse than published), and by conversion."""
    ann, snn = measured.headline.original, measured.headline.spiking
    reference = measured.published
    if measured.better_normalization is not None:
        reference = max(reference or 0.0, measured.normalizations[measured.better_normalization])
    if ann is None or snn is None or reference is None or reference - snn <= 0:
        return 0.0, 1.0
    before = min(max((reference - ann) / (reference - snn), 0.0), 1.0)
    return before, 1.0 - before


def _gain(measured: Checkup, kl: float, before: float | None = None) -> float:
    """Return the share of the loss that is removed if the divergence falls to kl."""
    whole = measured.kl if before is None else before
    return max(1 - kl / whole, 0.0) * split(measured)[1] if whole > 0 else 0.0


def rule(function: Rule) -> Rule:
    """Register a rule: measured results → findings."""
    RULES.append(function)
    return function


@rule
def _normalization(m: Checkup) -> Iterator[Finding]:
    ann, published = m.headline.original, m.published
    better = m.better_normalization
    if ann is None or (published is None and better is None):
        return
    error = math.sqrt(ann * (100 - ann) / m.evaluation["images"])
    below = published is not None and published - ann > max(3 * error, 2.0)
    if not below and better is None:
        return
    evidence = f"the original network reaches {ann:.1f} % (± {error:.1f})"
    if published is not None:
        evidence += f", and {published:.1f} % is published"
    if better is not None:
        evidence += (
            f"; on {m.probe_images} images {m.normalizations['as given']:.0f} % as given, "
            f"{m.normalizations[better]:.0f} % with the normalization {better}"
        )
    title = "The images are not normalized as the network was trained" if better else (
        "The original network does worse than published: check crop, size, normalization and class order"
    )  # fmt: skip
    yield Finding("normalization", title, evidence, split(m)[0], m.commands["normalization"], True)


@rule
def _calibration(m: Checkup) -> Iterator[Finding]:
    before, after = m.recalibrated
    share = max(1 - after / before, 0.0) * split(m)[1] if before > 0 else 0.0
    ordinary = [row for row in m.sites.values() if row["role"] != "softmax"]
    beyond = [row for row in m.sites.values() if row["largest"] > 1.5 * row["calibrated_largest"]]
    few = m.calibration_images < FEW_IMAGES
    if not few and (not beyond or len(beyond) < 0.1 * len(m.sites) or share < WORTH):
        return
    above = sum(row["above"] for row in ordinary) / max(len(ordinary), 1)
    yield Finding(
        "calibration",
        f"Thresholds rest on {m.calibration_images} calibration images",
        f"{len(beyond)} of {len(m.sites)} sites met values over 1.5 times the largest of calibration; "
        f"{100 * above:.1f} % of values are above their thresholds; "
        f"calibrating on other images changes the divergence from {before:.3f} to {after:.3f} nats",
        share,
        m.commands["calibration"],
        few,
    )


@rule
def _overlap(m: Checkup) -> Iterator[Finding]:
    if m.overlap:
        yield Finding(
            "overlap",
            f"{m.overlap} of {m.evaluation['images']} images were used for calibration as well",
            "what is measured on them is not a held-out figure",
            None,
            m.commands["evaluate"],
            True,
        )


@rule
def _scale(m: Checkup) -> Iterator[Finding]:
    if not m.scales or m.scale is None:
        return
    best = min(m.scales, key=lambda row: float(row["kl"]))
    share = _gain(m, best["kl"])
    if share < WORTH or math.isclose(best["scale"], m.scale, rel_tol=1e-3):
        return
    far = best["better"] and m.kl > FAR_SCALE * best["kl"]
    yield Finding(
        "scale",
        f"λ = {m.scale:g} is far from its optimum" if far else f"A λ near {best['scale']:g} is more exact",
        f"divergence {m.kl:.3f} nats at λ = {m.scale:g}{_energy(m, m.evaluation['energy'][m.energy])}, "
        f"{best['kl']:.3f} at λ = {best['scale']:g}{_energy(m, best['energy'])}",
        share,
        m.commands["search"] if far else m.commands["scale"],
        far,
    )


@rule
def _saturation(m: Checkup) -> Iterator[Finding]:
    saturated = [name for name, row in m.sites.items() if row["saturated"] > 0.01]
    relative = {name: 10 ** (-row["snr_db"] / 10) for name, row in m.sites.items()}
    clipped = sum(relative[name] * row["clipping"] for name, row in m.sites.items())
    share = clipped / (sum(relative.values()) or 1.0) * split(m)[1]
    if saturated and share >= WORTH:
        yield Finding(
            "saturation",
            f"{len(saturated)} sites fire their largest level for over 1 % of their values",
            f"clipping makes {100 * share:.0f} % of all coding error; worst at {_worst(m, 'saturated')}",
            share,
            m.commands["search"],
            share > 0.5,
        )


@rule
def _outliers(m: Checkup) -> Iterator[Finding]:
    if not m.outliers:
        return
    worst, row = next(iter(m.outliers.items()))
    carried = ", ".join(f"{name} ({number} times)" for name, number in row["named"].items())
    first = f"; {100 * row['first'] / row['carrying']:.0f} % of them are the first token" if carried else ""
    yield Finding(
        "outliers",
        f"{len(m.outliers)} sites receive values beyond their largest level",
        f"worst at {worst}: {row['largest']:.4g}, and its levels end at {row['reach']:.4g}; {row['carrying']} of "
        f"{row['rows']} rows carry such values{first}" + (f": {carried}" if carried else ""),
        None,
        m.commands.get("outliers") or m.commands["calibration"],
        row["largest"] > ALARMING * row["reach"],
    )


@rule
def _kinds(m: Checkup) -> Iterator[Finding]:
    if not m.kinds:
        return
    order = sorted(m.kinds, key=lambda k: m.kinds[k])
    share = _gain(m, m.kinds[order[0]])
    if share < WORTH:
        return
    shown = ", ".join(f"{k} {100 * _gain(m, m.kinds[k]):.0f} %" for k in order[:3])
    single = min(m.single, key=lambda s: m.single[s]) if m.single else None
    where = (
        ""
        if single is None
        else f"; the worst single site is {single} ({100 * _gain(m, m.single[single]):.0f} %)"
    )
    yield Finding(
        "sites",
        f"The sites {order[0]} cost most",
        f"share of the loss that goes when a kind of site stays analog: {shown}{where}",
        share,
        m.commands["kind"],
        False,
    )


@rule
def _variants(m: Checkup) -> Iterator[Finding]:
    for name, (before, after) in m.variants.items():
        share = _gain(m, after, before)
        if share < WORTH:
            continue
        evidence = f"divergence {before:.3f} → {after:.3f} nats, both calibrated on the same images"
        if m.used:
            evidence += " with the run's passes" + (" but tune" if "tune" in m.used else "")
        if "granularity" in VARIANTS[name]:
            evidence += f"; most outlier channels at {_worst(m, 'outlier_channels')}"
        losses = [row["row_loss"] for row in m.sites.values() if row["row_loss"] is not None]
        if "softmax" in VARIANTS[name] and losses:
            evidence += f"; softmax rows lose {100 * sum(losses) / len(losses):.1f} % of their sum on average"
        yield Finding(
            name, f"{name[0].upper()}{name[1:]} would be more exact", evidence, share, m.commands[name], False
        )


@rule
def _passes(m: Checkup) -> Iterator[Finding]:
    if m.passes is None:
        return
    before, after = m.passes
    share = _gain(m, after, before)
    if share >= WORTH:
        yield Finding(
            "passes",
            "The calibration passes were not used",
            f"divergence {before:.3f} → {after:.3f} nats at the same energy, both calibrated on the same images",
            share,
            m.commands["passes"],
            False,
        )


@rule
def _dead(m: Checkup) -> Iterator[Finding]:
    dead = [name for name, row in m.sites.items() if row["dead_channels"] > 0.2]
    if dead:
        yield Finding(
            "dead",
            f"{len(dead)} sites have over 20 % of channels that never fire",
            f"worst at {_worst(m, 'dead_channels')}; a smaller λ or a larger percentile wakes them",
            None,
            m.commands["per site"],
            False,
        )


def _energy(m: Checkup, ratio: float | None) -> str:
    return (
        ""
        if ratio is None
        else f" (energy {beside(m.energy, ratio, m.evaluation['analog_share'])}, {m.energy})"
    )


def _worst(m: Checkup, column: str) -> str:
    name = max(m.sites, key=lambda site: float(m.sites[site][column]))
    return f"{name} ({100 * m.sites[name][column]:.1f} %)"
