"""The nouns of a layout: what stands where, in metres, before anything is drawn.

Everything built is aligned with the scene's own axes (u, v); the frame turns them into the view's (x, y), with x to
the right, y down and the origin in the middle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.synthetic.domains import VOCABULARY, Colour, Domain, RoofKind, WaterKind
from ldstyle.data.synthetic.draws import Draws, direction

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


class Site:
    """One layout, its domain, its draws and the ground that is already taken.

    Attributes:
        held: Initials of the labels the scene is meant to hold.
        half: Half the side of the view, metres.
        reach: Half the diagonal of the view: nothing further out along an axis is seen.
    """

    def __init__(self, domain: Domain, layout: Layout, draws: Draws, held: str) -> None:
        self.domain = domain
        self.layout = layout
        self.draws = draws
        self.held = held
        self.half = layout.extent / 2
        self.reach = self.half * 1.42
        self.taken: list[Box] = []

    def depth(self, *points: tuple[float, float]) -> tuple[float, ...]:
        """Return how deep in water the points lie, metres; far negative where there is no water at all."""
        water = self.layout.water
        if water is None:
            return (-1000.0,) * len(points)
        u, v = np.asarray(points, np.float32).T
        return tuple(water.depth(u, v).tolist())

    def dry(self, box: Box, *, margin: float) -> bool:
        """Return whether a rectangle lies on land, at least ``margin`` from the water."""
        steps = (-1.0, -0.5, 0.0, 0.5, 1.0)
        points = [(box.u + i * box.half_u, box.v + j * box.half_v) for i in steps for j in steps]
        return self.layout.water is None or max(self.depth(*points)) < -margin

    def free(self, box: Box, *, gap: float) -> bool:
        """Return whether nothing has been put closer than ``gap``."""
        # The loop of all loops: `Box.meets` spelled out, and half the time of a layout saved.
        u, v, half_u, half_v = box
        half_u, half_v = half_u + gap, half_v + gap
        for at_u, at_v, wide_u, wide_v in self.taken:
            if abs(u - at_u) < half_u + wide_u and abs(v - at_v) < half_v + wide_v:
                return False
        return True

    def near(self, box: Box) -> bool:
        """Return whether some of a rectangle can be in view."""
        return self.layout.sees(box.u, box.v, margin=-max(box.half_u, box.half_v))

    def tint(self, colours: tuple[Colour, ...], spread: float = 0.08) -> Colour:
        """Draw a colour and a brightness around it."""
        factor = self.draws.within((1 - spread, 1 + spread))
        red, green, blue = (min(255, round(level * factor)) for level in self.draws.pick(colours))
        return red, green, blue

    def spot(self, *, margin: float) -> tuple[float, float]:
        """Draw a point of the scene that is in view."""
        while True:
            u, v = (self.draws.within((-self.reach, self.reach)) for _ in range(2))
            if self.layout.sees(u, v, margin=margin):
                return u, v
