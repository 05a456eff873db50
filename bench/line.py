"""A straight line through measurements at several sizes, and the sizes at which measurements leave it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

#: A line bends where a step costs this many times as much per pair as the step before.
_BENDS = 1.3


@dataclass(frozen=True)
class Line:
    """The line `base + slope * size`."""

    base: float
    slope: float

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Self:
        """Return the least-squares line through (size, value). Raises ValueError for fewer than two sizes."""
        if len({size for size, _ in points}) < 2:
            raise ValueError("a line needs two sizes")
        sizes, values = [size for size, _ in points], [value for _, value in points]
        middle, mean = sum(sizes) / len(sizes), sum(values) / len(values)
        spread = sum((size - middle) ** 2 for size in sizes)
        slope = sum((size - middle) * (value - mean) for size, value in points) / spread
        return cls(mean - slope * middle, slope)

    @staticmethod
    def bend(points: Sequence[tuple[float, float]]) -> str:
        """Return a text that says where the values grow faster than before; empty if they do not."""
        ordered = sorted(points)
        steps = [
            (first[0], (second[1] - first[1]) / (second[0] - first[0])) for first, second in itertools.pairwise(ordered)
        ]
        for (_, previous_slope), (size, slope) in itertools.pairwise(steps):
            if previous_slope > 0 and slope > _BENDS * previous_slope:
                return f"bends up at {size:g} ({1000 * previous_slope:.1f}, then {1000 * slope:.1f} a 1,000)"
        return "no bend upwards"
