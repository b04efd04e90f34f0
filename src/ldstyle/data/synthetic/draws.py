"""Random draws and directions that come out the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ldstyle.seeding import derive_seed

T = TypeVar("T")

TURN = 256
"""Directions of the compass rose: headings are whole numbers of 1/256 turn."""


class Span(NamedTuple):
    """A range a value is drawn from."""

    low: float
    high: float


class Draws:
    """Draws from one generator, seeded from their purpose.

    Everything is built on the generator's doubles in [0, 1) and on single additions, multiplications and divisions,
    which IEEE 754 rounds alike everywhere; library distributions and transcendental functions are not used.

    Args:
        meaning: What the draws are for, as in ``derive_seed``.
    """

    def __init__(self, *meaning: int | str) -> None:
        self._generator = np.random.Generator(np.random.PCG64DXSM(derive_seed(*meaning)))

    def within(self, span: tuple[float, float]) -> float:
        """Draw uniformly from [low, high)."""
        low, high = span
        return low + (high - low) * float(self._generator.random())

    def chance(self, probability: float) -> bool:
        """Draw True with the given probability."""
        return bool(self._generator.random() < probability)

    def whole(self, low: int, high: int) -> int:
        """Draw a whole number from low to high, both included."""
        return low + int(self._generator.random() * (high - low + 1))

    def pick(self, items: Sequence[T]) -> T:
        """Draw one of the items."""
        return items[self.whole(0, len(items) - 1)]

    def weighted(self, weights: Mapping[T, int]) -> T:
        """Draw one of the keys, in proportion to its weight."""
        rest = self.whole(1, sum(weights.values()))
        for item, weight in weights.items():
            rest -= weight
            if rest <= 0:
                return item
        raise AssertionError("weights are positive")

    def field(self, *shape: int) -> NDArray[np.float32]:
        """Draw an array uniformly from [-1, 1)."""
        return (self._generator.random(shape, dtype=np.float32) - np.float32(0.5)) * np.float32(2)


@cache
def direction(heading: int) -> tuple[float, float]:
    """Return the unit vector of a heading in 1/256 turn.

    Rounded to 1/4096, so that the last bit of a platform's cosine does not matter.
    """
    angle = 2 * math.pi * (heading % TURN) / TURN
    return round(math.cos(angle) * 4096) / 4096, round(math.sin(angle) * 4096) / 4096


def value_noise(draws: Draws, subpixels: int, cells: float, across: float | None = None) -> NDArray[np.float32]:
    """Draw smooth noise in [-1, 1) over a square of subpixels × subpixels.

    Args:
        draws: Where the bumps are drawn from.
        subpixels: Side of the square.
        cells: Bumps along a side. The draws depend on it alone: a finer sheet shows the same noise.
        across: Bumps from left to right, where their number differs from that from top to bottom.
    """
    rows, columns = cells, cells if across is None else across
    knots = draws.field(int(rows) + 2, int(columns) + 2)
    low, part = _steps(subpixels, rows)
    bands = knots[low] + (knots[low + 1] - knots[low]) * part[:, None]
    low, part = _steps(subpixels, columns)
    left = bands[:, low]
    return left + (bands[:, low + 1] - left) * part


def _steps(subpixels: int, cells: float) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    at = np.arange(subpixels, dtype=np.float32) * np.float32(cells / subpixels)
    low = at.astype(np.int64)
    part = at - low.astype(np.float32)
    return low, part * part * (3 - 2 * part)
