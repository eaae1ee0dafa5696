"""Drawings of records: fronts of accuracy against energy."""

from __future__ import annotations

import hashlib
from typing import Any

import records
from records import Record

from onespike.reports import plots
from onespike.tasks.intervals import NORMAL

SERIES = (
    ("the paper", plots.ORANGE, "s", "the paper's method, six λ"),
    ("passes,", plots.BLUE, "o", "passes up to allocate"),
    ("passes and correct", plots.GREEN, "^", "passes and correct"),
    ("all passes and tune", plots.GRAY, "v", "all passes and tune"),
    ("fast,", plots.INK, "D", "the preset fast"),
)
"""How the labels of rows begin → how these are drawn."""
NETWORKS = {
    "front-vit-tiny": "ViT-Tiny, ImageNet",
    "front-bundled-vit": "a small ViT, CIFAR-10",
    "front-resnet56": "ResNet-56, CIFAR-10",
    "front-bundled-resnet18": "ResNet-18, CIFAR-10",
}
"""Record → the title of its part in the overview."""
DIGEST = "Records"


def draw(axes: Any, record: Record, energy: str, only: tuple[str, ...] | None = None) -> None:
    """Points lost against energy, with 95 % intervals; rows with a budget are drawn in its column."""
    for start, color, marker, label in SERIES:
        rows = [row for row in record.rows if records.plain(row["what"]).startswith(start)]
        of_column = [r for r in rows if f"{energy} budget" in r["what"] or "budget" not in r["what"]]
        chosen = sorted(of_column, key=lambda row: row[energy])
        if chosen and (only is None or start in only):
            axes.errorbar(
                [float(row[energy]) for row in chosen], [float(row["difference"].value) for row in chosen],
                [NORMAL * float(row["difference"].error) for row in chosen],
                marker=marker, color=color, capsize=2, ms=4, label=label,
            )  # fmt: skip
    axes.axhline(0, color=plots.GRAY, linestyle="--")
    axes.set_xlabel(f"energy ({energy})")


def front(record: Record) -> Any:
    """One network, in both columns."""
    made, parts = plots.figure(10.0, 4.2, columns=2)
    for axes, energy in zip(parts, ("counts", "binary"), strict=True):
        draw(axes, record, energy)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=max(axes.get_ylim()[0], -30))
    parts[0].set_ylabel("points of top-1 against the original")
    made.legend(*parts[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    return made


def overview() -> Any:
    """Four networks in one row, as README shows them."""
    made, parts = plots.figure(12, 3.6, columns=len(NETWORKS))
    for axes, (name, title) in zip(parts, NETWORKS.items(), strict=True):
        draw(axes, records.read(name), "counts", ("the paper", "passes,", "fast,"))
        axes.set_title(title, fontsize=10)
        axes.set_ylim(-25, 3)
        axes.set_xlim(0, 0.55 if "ViT" in title else 0.22)
    parts[0].set_ylabel("points of top-1 against the original")
    made.legend(*parts[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    return made


def digest() -> str:
    """What the overview is drawn of, as it is written into the picture."""
    every = "".join(records.text(records.read(name)) for name in NETWORKS)
    return hashlib.sha256(every.encode()).hexdigest()
