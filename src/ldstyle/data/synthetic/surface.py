"""The sheet a scene is painted on: what each subpixel is made of, how it is lit, and which label it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.synthetic.domains import VOCABULARY, Colour

Point: TypeAlias = tuple[float, float]
Window: TypeAlias = tuple[slice, slice]

NOTHING = len(VOCABULARY)
"""Label number of a subpixel that belongs to no label."""

_FINE = 16
"""Corners are rounded to 1/16 subpixel, so that filling a polygon is exact integer arithmetic."""


class Grain(NamedTuple):
    """Unevenness of a material: fraction of its brightness that varies per subpixel and over about 2 and 12 m."""

    fine: float = 0.0
    medium: float = 0.0
    coarse: float = 0.0


SMOOTH = Grain(0.02, 0.01, 0.0)


class Surface:
    """A square of subpixels, each with a material, a light, a shadow and a label.

    Args:
        subpixels: Subpixels along a side.
        extent: Metres along a side.
    """

    def __init__(self, subpixels: int, extent: float) -> None:
        self.subpixels = subpixels
        self.scale = subpixels / extent
        self.material = np.zeros((subpixels, subpixels), np.int16)
        self.light = np.ones((subpixels, subpixels), np.float32)
        self.shadow = np.zeros((subpixels, subpixels), np.bool_)
        self.label = np.full((subpixels, subpixels), NOTHING, np.int8)
        self.colours: list[Colour] = []
        self.grains: list[Grain] = []
        self._middles = np.arange(subpixels, dtype=np.int64) * _FINE + _FINE // 2

    def add(self, colour: Colour, grain: Grain = SMOOTH) -> int:
        """Add a material and return its number."""
        self.colours.append(colour)
        self.grains.append(grain)
        return len(self.colours) - 1

    def to_subpixels(self, point: Point) -> Point:
        """Return a point of the view, in metres from the middle, in subpixels from the corner."""
        middle = self.subpixels / 2
        return point[0] * self.scale + middle, point[1] * self.scale + middle

    def paint(
        self, window: Window, inside: NDArray[np.bool_], material: int, *, light: float = 1.0, label: int | None = None
    ) -> None:
        """Cover the marked subpixels of a window; what covers a shadow lies in the sun.

        Args:
            window: Rows and columns.
            inside: Subpixels of the window to cover.
            material: Number of the material.
            light: Brightness of the material there.
            label: Label number; ``None`` keeps the label that is there.
        """
        self.material[window][inside] = material
        self.light[window][inside] = light
        self.shadow[window][inside] = False
        if label is not None:
            self.label[window][inside] = label

    def fill(self, corners: Sequence[Point], material: int, *, light: float = 1.0, label: int | None = None) -> None:
        """Cover a convex polygon, given in metres of the view."""
        window, inside = self.polygon(corners)
        if inside.size:
            self.paint(window, inside, material, light=light, label=label)

    def darken(self, corners: Sequence[Point], *, hull: bool = True) -> None:
        """Put the convex hull of some points, or the convex polygon they already are, in the shadow."""
        points = [self.to_subpixels(corner) for corner in corners]
        window, inside = self.polygon(_hull(points) if hull else points, metres=False)
        self.shadow[window][inside] = True

    def polygon(self, corners: Sequence[Point], *, metres: bool = True) -> tuple[Window, NDArray[np.bool_]]:
        """Return the window around a convex polygon and which of its subpixels have their middle inside or on it."""
        subpixels = [self.to_subpixels(corner) for corner in corners] if metres else corners
        points = [(round(x * _FINE), round(y * _FINE)) for x, y in subpixels]
        across, down = zip(*points, strict=True)
        window = self.window(min(across) / _FINE, min(down) / _FINE, max(across) / _FINE, max(down) / _FINE)
        ahead = [*points[1:], points[0]]
        area = sum(x * next_y - next_x * y for (x, y), (next_x, next_y) in zip(points, ahead, strict=True))
        sign = 1 if area >= 0 else -1
        edges = [
            (sign * (next_x - x), sign * (next_y - y), x, y)
            for (x, y), (next_x, next_y) in zip(points, ahead, strict=True)
        ]
        dx, dy, x0, y0 = np.array(edges, np.int64).T[:, :, None]
        below = dx * (self._middles[window[0]] - y0)  # (edges, rows)
        right = dy * (self._middles[window[1]] - x0)  # (edges, columns)
        return window, (below[:, :, None] >= right[:, None, :]).all(0)

    def window(self, left: float, top: float, right: float, bottom: float) -> Window:
        """Return the rows and columns between two corners, in subpixels, cut to the sheet."""
        low_x, low_y = min(max(int(left), 0), self.subpixels), min(max(int(top), 0), self.subpixels)
        high_x, high_y = min(int(right) + 1, self.subpixels), min(int(bottom) + 1, self.subpixels)
        return slice(low_y, max(low_y, high_y)), slice(low_x, max(low_x, high_x))

    def disc(self, middle: Point, radius: float) -> tuple[Window, NDArray[np.float32], NDArray[np.float32]]:
        """Return the window around a disc and its subpixels' offsets (x as a row, y as a column), in radii."""
        x, y = self.to_subpixels(middle)
        reach = max(radius * self.scale, 0.6)
        window = self.window(x - reach, y - reach, x + reach, y + reach)
        dx = (np.arange(window[1].start, window[1].stop, dtype=np.float32) + np.float32(0.5 - x)) / np.float32(reach)
        dy = (np.arange(window[0].start, window[0].stop, dtype=np.float32) + np.float32(0.5 - y)) / np.float32(reach)
        return window, dx[None, :], dy[:, None]


def _hull(points: list[Point]) -> list[Point]:
    ordered = sorted(set(points))
    chains: list[list[Point]] = []
    for run in (ordered, ordered[::-1]):
        chain: list[Point] = []
        for point in run:
            while len(chain) > 1 and _turn(chain[-2], chain[-1], point) <= 0:
                chain.pop()
            chain.append(point)
        chains.append(chain[:-1])
    return chains[0] + chains[1]


def _turn(first: Point, second: Point, third: Point) -> float:
    return (second[0] - first[0]) * (third[1] - first[1]) - (second[1] - first[1]) * (third[0] - first[0])
