"""A layout under construction: occupied, free and dry areas."""

from __future__ import annotations

import numpy as np

from ldstyle.data.synthetic.domains import Colour, Domain
from ldstyle.data.synthetic.draws import Draws
from ldstyle.data.synthetic.plan import Box, Layout


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
