"""Positions of the tiles of a scene, and the spatial block of each; independent of rasters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Position:
    """A tile along one axis.

    Attributes:
        offset: First pixel.
        block: Number of its block.
    """

    offset: int
    block: int


@dataclass(frozen=True)
class BlockGrid:
    """Square tiles in square blocks, with a gap between the blocks.

    Tiles are a stride apart and entirely inside the scene. Tiles closer to the previous block than the gap are omitted,
    so no pixel, and with a gap of a tile no pair of neighbours, is in two blocks.

    Attributes:
        size: Side of a tile in pixels.
        stride: Pixels from a tile to the next.
        block: Tiles along the side of a block.
        gap: Least pixels between the tiles of two blocks.
    """

    size: int
    stride: int
    block: int
    gap: int

    def __post_init__(self) -> None:
        for name in ("size", "stride", "block"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1; got {getattr(self, name)}.")
        if self.gap < 0:
            raise ValueError(f"--gap must be at least 0; got {self.gap}.")

    @property
    def pitch(self) -> int:
        """Strides from the first tile of a block to that of the next."""
        return self.block - 1 + max(1, -(-(self.size + self.gap) // self.stride))

    def along(self, length: int) -> list[Position]:
        """Return the tiles along an axis of this many pixels."""
        numbered = (divmod(number, self.pitch) for number in range((length - self.size) // self.stride + 1))
        return [
            Position((block * self.pitch + inside) * self.stride, block)
            for block, inside in numbered
            if inside < self.block
        ]


def chunks(tiles: list[Position], most: int) -> Iterator[list[Position]]:
    """Cut the tiles of a row into runs that are read at once.

    Args:
        tiles: Tiles along the row.
        most: Most pixels from the first to the last of a run, unless one tile has more.
    """
    run: list[Position] = []
    for tile in tiles:
        if run and tile.offset - run[0].offset >= most:
            yield run
            run = []
        run.append(tile)
    if run:
        yield run
