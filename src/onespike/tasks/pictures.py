"""Pictures of what two detectors find on the same images: boxes, masks, scores."""

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


def predictions(
    images: Sequence[tuple[Any, int | None]],
    results: Mapping[str, Sequence[Mapping[str, Any]]],
    categories: Mapping[int, str],
) -> Figure:
    """Draw COCO results on images with their ids: a row for each network, a column for each image."""
    drawing, grid = figure(3.2 * len(images), 5.8, columns=len(images), rows=2)
    for row, (network, title) in enumerate((("ann", "original"), ("snn", "spiking, T=1"))):
        for column, (image, number) in enumerate(images):
            here = [r for r in results[network] if r["image_id"] == number and r["score"] >= SMALLEST_SCORE]
            _panel(grid[row][column], image, here, categories)
            grid[row][column].set_title(f"{title}, image {number}", fontsize=9, pad=12)
    return drawing


def panel(image: Any, results: Sequence[Mapping[str, Any]], categories: Mapping[int, str]) -> Figure:
    """Draw one image with one network's results, without margin."""
    width, height = (SIDE * side / max(image.size) for side in image.size)
    drawing, axes = figure(width, height, margin=False)
    _panel(axes, image, results, categories)
    return drawing


def _panel(
    axes: Any, image: Any, results: Sequence[Mapping[str, Any]], categories: Mapping[int, str]
) -> None:
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
