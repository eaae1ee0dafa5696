"""The front of metric against energy: the points that no other point beats in both."""

from __future__ import annotations

from collections.abc import Sequence


def front(points: Sequence[tuple[float, float]], maximize: bool) -> list[int]:
    """Return the places of the (energy, value) points that no other point beats, by rising energy.

    >>> front([(0.1, 5), (0.2, 4), (0.3, 9)], maximize=True)
    [0, 2]
    >>> front([(0.1, 5), (0.2, 4), (0.3, 9), (0.4, 1)], maximize=False)
    [0, 1, 3]
    """
    sign = 1 if maximize else -1
    kept: list[int] = []
    for place in sorted(range(len(points)), key=lambda i: (points[i][0], -sign * points[i][1])):
        if not kept or sign * points[place][1] > sign * points[kept[-1]][1]:
            kept.append(place)
    return kept
