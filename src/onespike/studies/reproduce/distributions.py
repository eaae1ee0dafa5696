"""Activations before they are fired, and their spikes."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from onespike.errors import DataError
from onespike.neurons import Scale, ScaleFire
from onespike.recipe import preset
from onespike.reports import plots
from onespike.runtime.forward import evaluating
from onespike.sites import Site
from onespike.sites.tracer import Tracer
from onespike.studies.reproduce.bench import Bench
from onespike.studies.reproduce.study import Row, study
from onespike.tasks import limit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STAGES = {
    "pre-QKV": ("*qkv:linear0_input", "*query:linear0_input", "*q_proj:linear0_input"),
    "post-GELU": ("*fc2:linear0_input", "*.output.dense:linear0_input", "*mlp.3:linear0_input"),
    "post-softmax": (),
}
"""The three stages of the paper's figure, by the names of their consumers; softmax is found by its role."""
HISTOGRAM_SCALES = (1.0, 0.5, 0.252, 0.1)
BINS, IMAGES = 60, 16


def draw(rows: Sequence[Row]) -> Figure:
    made, axes = plots.figure(16, 3.4, columns=4)
    for panel, stage in zip(axes, (*STAGES, "spikes"), strict=True):
        own = [row for row in rows if row["stage"] == stage]
        if stage == "spikes":
            colors = (plots.GRAY, plots.GREEN, plots.BLUE, plots.ORANGE)
            for scale, color in zip(HISTOGRAM_SCALES, colors, strict=True):
                part = [row for row in own if row["scale"] == scale]
                xs, shares = [r["value"] for r in part], [r["share"] for r in part]
                panel.plot(xs, shares, ".-", color=color, label=f"λ = {scale:g}")
            panel.legend(frameon=False, fontsize=8)
            panel.set_title("spikes of the pre-QKV activations", fontsize=10)
            panel.set_xlabel("value of the spike, λθ·y")
        else:
            width = own[1]["value"] - own[0]["value"]
            panel.bar([row["value"] for row in own], [row["share"] for row in own], width, color=plots.BLUE)
            panel.set_title(f"{stage}: {own[0]['site']}", fontsize=10)
            panel.set_xlabel("activation")
        panel.set_yscale("log")
        panel.set_ylabel("share of values")
    return made


def _chosen(bench: Bench) -> dict[str, str]:
    thresholds = bench.calibrated(preset("sformer"))
    found = {}
    for stage, globs in STAGES.items():
        sites = [
            str(site)
            for site, threshold in thresholds.items()
            if (
                threshold.role == "softmax"
                if not globs
                else any(fnmatchcase(str(site), glob) for glob in globs)
            )
        ]
        if not sites:
            raise DataError(
                f"figure-distributions: {bench.loaded.spec} has no {stage} site. Give a vision transformer."
            )
        found[stage] = sites[len(sites) // 2]
    return found


@study(
    "figure-distributions",
    "Distributions of activations, and of their spikes at several λ",
    draw,
    "One site for each stage, from the middle of the network. The shares of the spikes are those of the pre-QKV "
    "activations coded at each λ; zero is the silent neuron.",
)
def distributions(bench: Bench) -> list[Row]:
    def gather() -> dict[str, Any]:
        chosen = _chosen(bench)
        values: dict[str, Tensor] = {}

        def observe(site: Site, x: Tensor) -> None:
            if str(site) in chosen.values():
                values[str(site)] = x.detach().flatten().float().cpu()

        x, _ = next(bench.labeled(limit(bench.test, IMAGES), IMAGES))
        with evaluating(bench.ann):
            Tracer(bench.ann, observe).run(x)
        rows = [row for stage, site in chosen.items() for row in _histogram(stage, site, values[site])]
        first = chosen["pre-QKV"]
        threshold = bench.calibrated(preset("sformer"))[first]
        for scale in HISTOGRAM_SCALES:
            neuron = ScaleFire(
                threshold.positive, threshold.negative, levels=threshold.levels, scale=Scale(scale)
            )
            spikes, numbers = neuron.spikes(values[first]).unique(return_counts=True)
            for value, number in zip(neuron.decode(spikes).tolist(), numbers.tolist(), strict=True):
                share = number / len(values[first])
                rows.append(
                    {"stage": "spikes", "site": first, "scale": scale, "value": value, "share": share}
                )
        return {"rows": rows}

    found: list[Row] = bench.once("distributions", gather)["rows"]
    return found


def _histogram(stage: str, site: str, values: Tensor) -> list[Row]:
    low, high = float(values.min()), float(values.max())
    share = torch.histc(values, BINS, low, high) / len(values)
    width = (high - low) / BINS
    return [
        {"stage": stage, "site": site, "scale": None, "value": low + (i + 0.5) * width, "share": float(s)}
        for i, s in enumerate(share)
    ]
