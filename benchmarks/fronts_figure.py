"""The fronts of several networks in one figure, drawn from the tables of docs/fronts.md, so that the two agree.

python benchmarks/fronts_figure.py --out docs/images/fronts.png
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from onespike.reports import plots
from onespike.runtime.atomic import write_atomically
from onespike.tasks.intervals import NORMAL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = Path(__file__).resolve().parents[1] / "docs" / "fronts.md"
NETWORKS = {
    "ViT-Tiny/16, all 1,000": "ViT-Tiny, ImageNet",
    "**The bundled vision transformer**": "a small ViT, CIFAR-10",
    "**A CIFAR-10 ResNet-56**": "ResNet-56, CIFAR-10",
    "**The bundled ResNet-18**": "ResNet-18, CIFAR-10",
}
"""How the paragraph before a network's table begins → the title of its part."""
SERIES = (
    ("the paper", plots.ORANGE, "s", "the paper's method, six λ"),
    ("passes, counts", plots.BLUE, "o", "passes up to allocate"),
    ("fast, counts", plots.INK, "D", "the preset fast"),
)


class Row(NamedTuple):
    """A row of a table: points lost, their paired standard error, and the ratio of the column counts."""

    name: str
    difference: float
    error: float
    energy: float


def tables(text: str) -> dict[str, list[Row]]:
    """Title → the rows of the table after its paragraph."""
    found = {}
    for start, title in NETWORKS.items():
        after = text[text.index(f"\n{start}") :]
        lines = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
        cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines[0].splitlines()[2:]]
        numbers = [(c[0].replace("`", ""), *c[2].replace("−", "-").split(" ± "), c[4]) for c in cells]
        found[title] = [Row(name, float(gap), float(error), float(x)) for name, gap, error, x in numbers]
    return found


def drawn(found: dict[str, list[Row]]) -> Figure:
    """One part per network: points lost against energy, with 95 % intervals."""
    figure, parts = plots.figure(12, 3.6, columns=len(found))
    for axes, (title, rows) in zip(parts, found.items(), strict=True):
        for start, color, marker, label in SERIES:
            chosen = sorted((r for r in rows if r.name.startswith(start)), key=lambda r: r.energy)
            axes.errorbar(
                [r.energy for r in chosen], [r.difference for r in chosen], [NORMAL * r.error for r in chosen],
                marker=marker, color=color, capsize=2, ms=4, label=label,
            )  # fmt: skip
        axes.axhline(0, color=plots.GRAY, linestyle="--")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("energy (counts)")
        axes.set_ylim(-25, 3)
        axes.set_xlim(0, 0.55 if "ViT" in title else 0.22)
    parts[0].set_ylabel("points of top-1 against the original")
    figure.legend(*parts[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    write_atomically(out, plots.saved(drawn(tables(PAGE.read_text(encoding="utf-8")))))
    print(f"written to {out}")


if __name__ == "__main__":
    main()
