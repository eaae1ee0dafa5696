"""Measured results → at most five findings, worst first, each with its share of the loss and a command."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from onespike.diagnosis.measurement import PROBE_IMAGES, Checkup, checkup
from onespike.energy.columns import beside
from onespike.errors import UsageError
from onespike.runs.pair import in_memory
from onespike.tasks import Task

MOST_FINDINGS = 5
FEW_IMAGES = 16  # fewer calibration images than this are too few for reliable thresholds
FAR_SCALE = 4.0  # λ is off if the divergence is this many times the best of the sweep, and answers change
ALARMING = 10.0  # a value this many times the largest level ruins everything after it
WORTH = 0.1  # a remedy is listed if it removes this share of the divergence


@dataclass(frozen=True)
class Finding:
    """One thing that costs accuracy: the finding in words, the figures behind it, and the command or call to try."""

    cause: str
    title: str
    evidence: str
    share: float | None  # estimated, of the loss; None if unknown
    command: str
    alarming: bool = False  # a mistake in the setup; others are ways to gain more


def doctor(
    model: nn.Module,
    snn: nn.Module,
    loader: Iterable[tuple[Any, Any]],
    *,
    images: int = PROBE_IMAGES,
    task: Task | None = None,
) -> list[Finding]:
    """Return what costs a network's converted copy accuracy, worst first, each with a call to try.

    The loader gives (inputs, labels) that calibration did not see; labels may be None. So many `images` of them are
    measured in many variants. The output has the meaning of a task, by default classes.
    """
    pair, items = in_memory(model, snn, loader, task)
    if min(len(items), images) < 2:
        raise UsageError("doctor: at least 2 inputs are needed. Give more.")
    return diagnose(checkup(pair, items, None, images=images))


def diagnose(measured: Checkup) -> list[Finding]:
    """Return what costs accuracy: mistakes, then unused passes, then other gains, the larger share first."""
    findings = [finding for rule in RULES for finding in rule(measured)]
    findings.sort(key=lambda f: (not f.alarming, f.cause != "passes", -(f.share or 0.0)))
    return findings[:MOST_FINDINGS]


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


def _gain(m: Checkup, after: float, before: float | None = None) -> float:
    """Return the share of the loss that goes when the divergence falls from `before`, or else the run's."""
    whole = m.kl if before is None else before
    return max(1 - after / whole, 0.0) * split(m)[1] if whole > 0 else 0.0


def _worst(m: Checkup, column: str) -> str:
    name = max(m.sites, key=lambda site: float(m.sites[site][column]))
    return f"{name} ({100 * m.sites[name][column]:.1f} %)"


def _normalization(m: Checkup) -> Iterator[Finding]:
    ann, published, better = m.headline.original, m.published, m.better_normalization
    if ann is None:
        return
    error = math.sqrt(ann * (100 - ann) / m.evaluation["images"])
    below = published is not None and published - ann > max(3 * error, 2.0)
    if not below and better is None:
        return
    title = "The original network does worse than published: check crop, size, normalization and class order"
    evidence = f"the original network reaches {ann:.1f} % (± {error:.1f})"
    if published is not None:
        evidence += f", and {published:.1f} % is published"
    if better is not None:
        title = "The images are not normalized as the network was trained"
        evidence += (
            f"; on {m.probe_images} images {m.normalizations['as given']:.0f} % as given, "
            f"{m.normalizations[better]:.0f} % with the normalization {better}"
        )
    yield Finding("normalization", title, evidence, split(m)[0], m.commands["normalization"], True)


def _calibration(m: Checkup) -> Iterator[Finding]:
    before, after = m.recalibrated
    share = _gain(m, after, before)
    ordinary = [row for row in m.sites.values() if row["role"] != "softmax"]
    beyond = [row for row in m.sites.values() if row["largest"] > 1.5 * row["calibrated_largest"]]
    few = m.calibration_images < FEW_IMAGES
    if few or (beyond and len(beyond) >= 0.1 * len(m.sites) and share >= WORTH):
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


def _overlap(m: Checkup) -> Iterator[Finding]:
    if m.overlap:
        title = f"{m.overlap} of {m.evaluation['images']} images were used for calibration as well"
        evidence = "what is measured on them is not a held-out figure"
        yield Finding("overlap", title, evidence, None, m.commands["evaluate"], True)


def _scale(m: Checkup) -> Iterator[Finding]:
    if not m.scales or m.scale is None:
        return
    best = min(m.scales, key=lambda row: float(row["kl"]))
    share = _gain(m, best["kl"])
    if share < WORTH or math.isclose(best["scale"], m.scale, rel_tol=1e-3):
        return
    analog = m.evaluation["analog_share"]

    def energy(ratio: float | None) -> str:
        return "" if ratio is None else f" (energy {beside(m.energy, ratio, analog)}, {m.energy})"

    far = best["better"] and m.kl > FAR_SCALE * best["kl"]
    yield Finding(
        "scale",
        f"λ = {m.scale:g} is far from its optimum" if far else f"A λ near {best['scale']:g} is more exact",
        f"divergence {m.kl:.3f} nats at λ = {m.scale:g}{energy(m.evaluation['energy'][m.energy])}, "
        f"{best['kl']:.3f} at λ = {best['scale']:g}{energy(best['energy'])}",
        share,
        m.commands["search" if far else "scale"],
        far,
    )


def _saturation(m: Checkup) -> Iterator[Finding]:
    saturated = [name for name, row in m.sites.items() if row["saturated"] > 0.01]
    relative = {name: 10 ** (-row["snr_db"] / 10) for name, row in m.sites.items()}
    clipped = sum(relative[name] * row["clipping"] for name, row in m.sites.items())
    share = clipped / (sum(relative.values()) or 1.0) * split(m)[1]
    if saturated and share >= WORTH:
        title = f"{len(saturated)} sites fire their largest level for over 1 % of their values"
        worst = _worst(m, "saturated")
        evidence = f"clipping makes {100 * share:.0f} % of all coding error; worst at {worst}"
        yield Finding("saturation", title, evidence, share, m.commands["search"], share > 0.5)


def _outliers(m: Checkup) -> Iterator[Finding]:
    for site, row in list(m.outliers.items())[:1]:
        evidence = (
            f"worst at {site}: {row['largest']:.4g}, and its levels end at {row['reach']:.4g}; {row['carrying']} of "
            f"{row['rows']} rows carry such values"
        )
        if row["named"]:
            names = ", ".join(f"{name} ({number} times)" for name, number in row["named"].items())
            evidence += f"; {100 * row['first'] / row['carrying']:.0f} % of them are the first token: {names}"
        title = f"{len(m.outliers)} sites receive values beyond their largest level"
        command = m.commands.get("outliers") or m.commands["calibration"]
        yield Finding("outliers", title, evidence, None, command, row["largest"] > ALARMING * row["reach"])


def _kinds(m: Checkup) -> Iterator[Finding]:
    gains = {name: _gain(m, kl) for name, kl in sorted(m.kinds.items(), key=lambda item: item[1])}
    if not gains or (share := next(iter(gains.values()))) < WORTH:
        return
    shares = ", ".join(f"{name} {100 * gain:.0f} %" for name, gain in list(gains.items())[:3])
    evidence = f"share of the loss that goes when a kind of site stays analog: {shares}"
    if m.single:
        site = min(m.single, key=lambda name: m.single[name])
        evidence += f"; the worst single site is {site} ({100 * _gain(m, m.single[site]):.0f} %)"
    yield Finding("sites", f"The sites {next(iter(gains))} cost most", evidence, share, m.commands["kind"])


def _variants(m: Checkup) -> Iterator[Finding]:
    for name, (before, after) in (m.variants | ({"passes": m.passes} if m.passes else {})).items():
        share = _gain(m, after, before)
        if share < WORTH:
            continue
        title, unused = f"{name[0].upper()}{name[1:]} would be more exact", name == "passes"
        evidence = f"divergence {before:.3f} → {after:.3f} nats{' at the same energy' if unused else ''}"
        evidence += ", both calibrated on the same images"
        if unused:
            title = "The calibration passes were not used"
        elif m.used:
            evidence += " with the run's passes" + (" but tune" if "tune" in m.used else "")
        if name == "thresholds per channel":
            evidence += f"; most outlier channels at {_worst(m, 'outlier_channels')}"
        losses = [row["row_loss"] for row in m.sites.values() if row["row_loss"] is not None]
        if name == "softmax thresholds per head" and losses:
            evidence += f"; softmax rows lose {100 * sum(losses) / len(losses):.1f} % of their sum on average"
        yield Finding(name, title, evidence, share, m.commands[name])


def _dead(m: Checkup) -> Iterator[Finding]:
    dead = [name for name, row in m.sites.items() if row["dead_channels"] > 0.2]
    if dead:
        title = f"{len(dead)} sites have over 20 % of channels that never fire"
        evidence = f"worst at {_worst(m, 'dead_channels')}; a smaller λ or a larger percentile wakes them"
        yield Finding("dead", title, evidence, None, m.commands["per site"])


RULES: tuple[Callable[[Checkup], Iterator[Finding]], ...] = (
    _normalization, _calibration, _overlap, _scale, _saturation, _outliers, _kinds, _variants, _dead,
)  # fmt: skip
