"""The meaning of a detector's output: a set of objects, each present or not, with a box and perhaps a mask.

The model of one image's output: object i is present with probability s_i, its score. If it is, its sides are normal
around its box with a deviation of a tenth of its size, and its mask is one sample of all pixels together, each on
with its probability. Samples from it give Fisher information, and the divergence of two such outputs is
Σ KL(s‖s′) + s·(KL of boxes + mean KL of pixels) over the objects that both have.
"""

from collections.abc import Mapping

import torch
from torch import Generator, Tensor

Objects = Mapping[str, Tensor]
"""`scores` and `labels` (n), `boxes` (n, 4) as corners, and perhaps `masks` (n, height, width) as probabilities."""

DEVIATION = 0.1
"""The noise on the sides of a box, relative to its width and height: about the resolution of AP's strict thresholds."""
LEAST = 1e-3  # the score of an object that a network does not report
OVERLAP = 0.5
SURE = 1e-6


def _bernoulli(on: Tensor, p: Tensor) -> Tensor:
    """Return the log-probability of samples, or its expectation where `on` is a probability."""
    p = p.clamp(SURE, 1 - SURE)
    return on * p.log() + (1 - on) * (1 - p).log()


def _kl(p: Tensor, q: Tensor) -> Tensor:
    return _bernoulli(p, p) - _bernoulli(p, q)


def _size(boxes: Tensor) -> Tensor:
    sides = (boxes[:, 2:] - boxes[:, :2]).detach().abs().clamp(min=SURE)
    return torch.cat([sides, sides], 1)


def drawn(objects: Objects, generator: Generator) -> Tensor:
    """Return the log-probability of an image's objects, boxes and masks as sampled from the output."""

    def sampled(p: Tensor) -> Tensor:
        return (torch.rand(p.shape, generator=generator).to(p) < p.detach()).to(p)

    scores = objects["scores"]
    weight = scores.detach().clamp(min=0).sqrt()  # so that the score weights the information of box and mask
    total = _bernoulli(sampled(scores), scores).sum()
    if (boxes := objects.get("boxes")) is not None and boxes.requires_grad:
        noise = torch.randn(boxes.shape, generator=generator).to(boxes)
        deviation = DEVIATION * _size(boxes)
        sides = -0.5 * ((boxes.detach() + deviation * noise - boxes) / deviation).square()
        total = total + (weight[:, None] * sides).sum()
    if (masks := objects.get("masks")) is not None and masks.requires_grad:
        area = masks.detach().flatten(1).sum(1).clamp(min=1).sqrt()
        total = total + (weight / area * _bernoulli(sampled(masks), masks).flatten(1).sum(1)).sum()
    return total


def _corners(objects: Objects) -> Tensor:
    """Return the boxes, or those around the masks."""
    boxes = objects["boxes"] if "boxes" in objects else boxes_around(objects["masks"].cpu() > 0.5)
    return boxes.detach().float().cpu()


def boxes_around(masks: Tensor) -> Tensor:
    """Return the corners (x0, y0, x1, y1) of what is on in each mask; zeros where nothing is."""
    corners = torch.zeros(len(masks), 4, dtype=torch.long)
    for row, mask in zip(corners, masks, strict=True):
        ys, xs = torch.nonzero(mask, as_tuple=True)
        if len(ys):
            row[:] = torch.stack([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
    return corners


def overlaps(first: Tensor, second: Tensor) -> Tensor:
    """Return the intersection over union of all pairs of boxes.

    >>> overlaps(torch.tensor([[0.0, 0, 2, 2]]), torch.tensor([[1.0, 0, 3, 2], [0, 0, 2, 2]]))
    tensor([[0.3333, 1.0000]])
    """
    low = torch.maximum(first[:, None, :2], second[None, :, :2])
    high = torch.minimum(first[:, None, 2:], second[None, :, 2:])
    inner = (high - low).clamp(min=0).prod(-1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(-1) for boxes in (first, second)]
    return inner / (areas[0][:, None] + areas[1][None] - inner).clamp(min=1e-12)


def paired(first: Objects, second: Objects) -> tuple[Tensor, Tensor]:
    """Return the places of the objects that two outputs share, in each of them.

    Each of the first, by score, takes the best free one of the same class that overlaps it by at least half.
    """
    same = first["labels"].cpu()[:, None] == second["labels"].cpu()[None]
    shared = torch.where(same, overlaps(_corners(first), _corners(second)), torch.zeros(()))
    pairs = []
    for i in first["scores"].detach().argsort(descending=True).tolist() if shared.numel() else ():
        value, j = shared[i].max(0)
        if float(value) >= OVERLAP:
            pairs.append((i, int(j)))
            shared[:, j] = 0
    mine, theirs = torch.tensor(pairs, dtype=torch.long).view(-1, 2).T
    return mine, theirs


def unlike(expected: Objects, actual: Objects) -> Tensor:
    """Return the divergence of an image's objects from the expected ones."""
    p, q = expected["scores"], actual["scores"]
    i, j = (places.to(p.device) for places in paired(expected, actual))
    lost, new = (torch.ones_like(x, dtype=torch.bool).index_fill(0, at, False) for x, at in ((p, i), (q, j)))
    least, weight = p.new_tensor(LEAST), p[i].detach()
    total = _kl(p[i], q[j]).sum() + _kl(p[lost], least).sum() + _kl(least, q[new]).sum()
    if "boxes" in expected:
        mine, theirs = expected["boxes"][i], actual["boxes"][j]
        sides = 0.5 * ((mine - theirs) / (DEVIATION * _size(mine))).square()
        total = total + (weight[:, None] * sides).sum()
    masks = expected.get("masks")
    if masks is not None and masks.is_floating_point():
        area = masks[i].detach().flatten(1).sum(1).clamp(min=1)
        total = total + (weight * (_kl(masks[i], actual["masks"][j]).flatten(1).sum(1) / area)).sum()
    return total


def parted(first: Objects, second: Objects, score: float) -> int:
    """Return the number of objects with at least this score that only one of two outputs has."""
    first, second = ({k: x[o["scores"].detach() >= score] for k, x in o.items()} for o in (first, second))
    return len(first["scores"]) + len(second["scores"]) - 2 * len(paired(first, second)[0])
