"""The nouns of a layout: what stands where, in metres, before anything is drawn.

Everything built is aligned with the scene's own axes (u, v); the frame turns them into the view's (x, y), with x to
the right, y down and the origin in the middle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.synthetic.domains import VOCABULARY, Colour, RoofKind, WaterKind
from ldstyle.data.synthetic.draws import direction

Axis: TypeAlias = Literal["u", "v"]
Grid: TypeAlias = NDArray[np.float32]


class Box(NamedTuple):
    """A rectangle along the scene's axes, by its centre and half sides."""

    u: float
    v: float
    half_u: float
    half_v: float

    def meets(self, other: Box, *, gap: float) -> bool:
        """Return whether the two rectangles come closer than ``gap`` along both axes."""
        return (
            abs(self.u - other.u) < self.half_u + other.half_u + gap
            and abs(self.v - other.v) < self.half_v + other.half_v + gap
        )

    def inset(self, by: float) -> Box:
        """Return the rectangle with every side moved inwards."""
        return Box(self.u, self.v, self.half_u - by, self.half_v - by)

    @property
    def corners(self) -> tuple[tuple[float, float], ...]:
        """The four corners, in order around the rectangle."""
        u, v, a, b = self
        return (u - a, v - b), (u + a, v - b), (u + a, v + b), (u - a, v + b)


@dataclass(frozen=True)
class Frame:
    """The turn between the scene's axes and the view's."""

    heading: int

    def to_view(self, u: float, v: float) -> tuple[float, float]:
        """Return the view's coordinates of a point or a vector."""
        cos, sin = direction(self.heading)
        return u * cos - v * sin, u * sin + v * cos

    def to_scene(self, x: Grid, y: Grid) -> tuple[Grid, Grid]:
        """Return the scene's coordinates of points of the view."""
        cos, sin = (np.float32(part) for part in direction(self.heading))
        return x * cos + y * sin, y * cos - x * sin


@dataclass(frozen=True)
class Water:
    """A body of water, as a depth that is positive inside it.

    Attributes:
        kind: ``coast`` lies beyond v = edge, ``river`` within ``reach`` of it, ``lake`` within ``reach`` of (u, edge).
        edge: Where it is along v.
        reach: Half width of a river or lake.
        u: Middle of a lake.
        bends: Offsets of the shore in metres, at equal steps of ``step`` along u and along v.
        step: Distance between two bends.
        quay: Whether the shore is a wall.
    """

    kind: WaterKind
    edge: float
    reach: float
    u: float
    bends: tuple[tuple[float, ...], tuple[float, ...]]
    step: float
    quay: bool

    def depth(self, u: Grid, v: Grid) -> Grid:
        """Return the distance to the shore in metres, about; negative on land."""
        offset = _along(self.bends[0], u / np.float32(self.step))
        off = v - np.float32(self.edge)
        match self.kind:
            case "coast":
                return off + offset
            case "river":
                middle: Grid = np.abs(off + offset)
                return np.float32(self.reach) - middle
            case "lake":
                du = u - np.float32(self.u)
                wide = np.float32(0.6)
                other = _along(self.bends[1], v / np.float32(self.step))
                away: Grid = np.sqrt(du * du * wide + off * off)
                return offset + other + np.float32(self.reach) - away


def _along(knots: tuple[float, ...], at: Grid) -> Grid:
    values = np.asarray(knots, np.float32)
    at = np.clip(at + np.float32(len(knots) / 2), 0, np.float32(len(knots) - 1.001))
    low = at.astype(np.int64)
    part = at - low.astype(np.float32)
    smooth: Grid = part * part * (3 - 2 * part)
    return values[low] * (1 - smooth) + values[low + 1] * smooth


@dataclass(frozen=True)
class Road:
    """A straight road along an axis, with a walk on both sides."""

    axis: Axis
    at: float
    half: float
    walk: float
    colour: Colour
    bridge: bool

    def box(self, length: float) -> Box:
        """Return the road with its walks as a rectangle of half length ``length``."""
        wide = self.half + self.walk
        return Box(0, self.at, length, wide) if self.axis == "u" else Box(self.at, 0, wide, length)


@dataclass(frozen=True)
class Lot:
    """A paved area: with stalls to park in, or of slabs."""

    box: Box
    colour: Colour
    stalls: bool


@dataclass(frozen=True)
class Patch:
    """Ground of another colour: a yard, a field, a court, a pier, stacked containers. Carries no label."""

    box: Box
    colour: Colour
    kind: Literal["yard", "field", "court", "pier", "crate"]


@dataclass(frozen=True)
class Building:
    """A building of one or two wings under roofs of one shape."""

    wings: tuple[Box, ...]
    height: float
    roof: RoofKind
    colour: Colour
    fittings: tuple[Box, ...]


@dataclass(frozen=True)
class Car:
    """A car, by its middle; ``ahead`` is the direction it faces in the scene's axes."""

    u: float
    v: float
    ahead: tuple[int, int]
    length: float
    width: float
    colour: Colour


@dataclass(frozen=True)
class Tree:
    """A tree, by its stem and the radius of its crown."""

    u: float
    v: float
    radius: float
    colour: Colour


@dataclass(frozen=True)
class Ship:
    """A ship, by its middle; ``ahead`` is the unit vector of its bow in the scene's axes."""

    u: float
    v: float
    ahead: tuple[float, float]
    length: float
    beam: float
    hull: Colour
    deck: Colour
    sailing: bool


@dataclass
class Layout:
    """What stands where in one scene.

    Attributes:
        extent: Side of the square in view, metres.
        frame: The turn of the scene's axes.
        sun: Heading towards which shadows fall, in 1/256 turn.
        shadow: Length of a shadow per metre of height.
        grounds: Colours of the ground, two that mingle.
        furrows: Strength of plough lines across the open ground; 0 for none.
    """

    extent: float
    frame: Frame
    sun: int
    shadow: float
    grounds: tuple[Colour, Colour]
    furrows: float
    water: Water | None = None
    shore: Colour = (0, 0, 0)
    waters: tuple[Colour, Colour] = ((0, 0, 0), (0, 0, 0))
    roads: list[Road] = field(default_factory=list)
    lots: list[Lot] = field(default_factory=list)
    patches: list[Patch] = field(default_factory=list)
    buildings: list[Building] = field(default_factory=list)
    cars: list[Car] = field(default_factory=list)
    trees: list[Tree] = field(default_factory=list)
    ships: list[Ship] = field(default_factory=list)

    def sees(self, u: float, v: float, *, margin: float) -> bool:
        """Return whether a point lies in view, at least ``margin`` from the frame (negative: at most outside)."""
        x, y = self.frame.to_view(u, v)
        return max(abs(x), abs(y)) < self.extent / 2 - margin

    def cast(self, height: float) -> tuple[float, float]:
        """Return where the shadow of a point of that height falls, from its foot, in the view."""
        x, y = direction(self.sun)
        return x * height * self.shadow, y * height * self.shadow

    @property
    def labels(self) -> tuple[bool, ...]:
        """Which labels of the vocabulary the layout holds."""
        paved = bool(self.roads or self.lots)
        held = (self.buildings, self.cars, self.trees, self.water is not None, paved, self.ships)
        return tuple(bool(things) for _, things in zip(VOCABULARY, held, strict=True))
