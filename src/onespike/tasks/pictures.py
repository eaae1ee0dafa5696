"""Pictures of what a detector finds on an image: boxes, masks, scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onespike.runtime.figures import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
"""Okabe and Ito's palette, one color per class in turn."""

SMALLEST_SCORE = 0.3
SIDE = 2.4
"""The longer side of a single picture, in inches."""


def panel(image: Any, results: Sequence[Mapping[str, Any]], categories: Mapping[int, str]) -> Figure:
    """Draw one image with one network's results, without margin."""
    width, height = (SIDE * side / max(image.size) for side in image.size)
    drawing, axes = figure(width, height, margin=False)
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    axes.imshow(image, interpolation="nearest")
    axes.axis("off")
    for result in sorted(results, key=lambda r: r["score"]):  # the best results are on top
        color = COLORS[list(categories).index(result["category_id"]) % len(COLORS)]
        x, y, width, height = result["bbox"]
        if "segmentation" in result:
            from pycocotools.mask import decode

            mask = decode(result["segmentation"])[..., None]
            axes.imshow(mask * [*to_rgb(color), 0.45], interpolation="nearest")
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), width, height, fill=False, ec=color, lw=1.5))
        right = x > 0.6 * image.size[0]  # there the label ends where the box ends, to stay inside the picture
        axes.text(
            x + width if right else x, max(y - 1, 0), f"{categories[result['category_id']]} {result['score']:.2f}",
            fontsize=7, color="black", va="bottom", ha="right" if right else "left",
            bbox=dict(fc=color, ec="none", pad=0.8, alpha=0.85),
        )  # fmt: skip
    return drawing
