"""The three built-in domains as data: sensor, contents, and appearance of each label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ldstyle.data.domains.scene_table import PAPER_VOCABULARY
from ldstyle.data.synthetic.draws import Span

VOCABULARY = PAPER_VOCABULARY

Colour: TypeAlias = tuple[int, int, int]
WaterKind: TypeAlias = Literal["coast", "river", "lake"]
PavingKind: TypeAlias = Literal["street", "lot", "apron"]
RoofKind: TypeAlias = Literal["gable", "hip", "flat"]


@dataclass(frozen=True)
class Sensor:
    """How a domain's camera turns light into pixels.

    Attributes:
        gain: Response per channel.
        saturation: Colourfulness, drawn per scene; 1 keeps the colours.
        exposure: Brightness factor, drawn per scene.
        contrast: Strength of an S-shaped tone curve.
        haze: Fraction of airlight, drawn per scene.
        haze_colour: Colour of the airlight.
        blur: Weight of a 3 × 3 binomial blur, drawn per scene; above 1, a second pass gets the rest.
        noise: Standard deviation of the noise in grey levels.
    """

    gain: tuple[float, float, float]
    saturation: Span
    exposure: Span
    contrast: float
    haze: Span
    haze_colour: Colour
    blur: Span
    noise: float


@dataclass(frozen=True)
class Palette:
    """Colours of a domain, one drawn per object or region."""

    ground: tuple[Colour, ...]
    bare: tuple[Colour, ...]
    pitched: tuple[Colour, ...]
    flat: tuple[Colour, ...]
    asphalt: tuple[Colour, ...]
    concrete: tuple[Colour, ...]
    marking: Colour
    cars: tuple[Colour, ...]
    crowns: tuple[Colour, ...]
    water: tuple[tuple[Colour, Colour], ...]
    shore: tuple[Colour, ...]
    hulls: tuple[Colour, ...]
    decks: tuple[Colour, ...]


@dataclass(frozen=True)
class Domain:
    """One domain of synthetic scenes. Lengths are in metres.

    Attributes:
        name: Name of the domain and of its folder.
        label_sets: Weight of each set of labels, written with the labels' initials; a ship is always on water.
        extent: Side of the square a scene shows; with the image size it gives the ground sampling distance.
        sensor: How the camera sees.
        palette: Colours.
        shadow: Length of a shadow per metre of height.
        foliage: Fraction of a crown that is leaves; the ground shows through the rest.
        leaf: Size of the clumps of a crown.
        roofs: Weight of each roof shape.
        footprint: Length of a building's longer side.
        height: Height of a building.
        block: Distance between parallel streets.
        lane: Width of a lane.
        avenue: Probability that streets have four lanes.
        paving: Weight of each way to be paved.
        waters: Weight of each kind of water.
        quay: Probability that a coast is a straight wall.
        crown: Radius of a crown.
        ship: Length of a ship.
        sailing: Probability that a ship is under way.
    """

    name: str
    label_sets: Mapping[str, int]
    extent: Span
    sensor: Sensor
    palette: Palette
    shadow: Span
    foliage: float
    leaf: float
    roofs: Mapping[RoofKind, int]
    footprint: Span
    height: Span
    block: Span
    lane: float
    avenue: float
    paving: Mapping[PavingKind, int]
    waters: Mapping[WaterKind, int]
    quay: float
    crown: Span
    ship: Span
    sailing: float


SUBURB = Domain(
    name="suburb",
    label_sets={
        "": 154,
        "bctp": 127,
        "cp": 115,
        "ctp": 107,
        "p": 88,
        "t": 77,
        "btp": 52,
        "bcp": 51,
        "ws": 47,
        "tp": 40,
        "bp": 40,
        "tw": 30,
        "bt": 24,
        "bct": 22,
        "b": 14,
        "w": 9,
        "twp": 4,
        "wp": 2,
        "bws": 1,
    },
    extent=Span(66, 84),
    sensor=Sensor(
        gain=(1.05, 1.0, 0.92),
        saturation=Span(0.72, 0.95),
        exposure=Span(0.95, 1.1),
        contrast=0.35,
        haze=Span(0.0, 0.05),
        haze_colour=(190, 195, 200),
        blur=Span(0.1, 0.35),
        noise=2.5,
    ),
    palette=Palette(
        ground=((112, 118, 72), (128, 124, 84), (96, 112, 64), (146, 136, 98), (104, 122, 70)),
        bare=((176, 156, 120), (164, 142, 110), (190, 172, 138), (150, 132, 104)),
        pitched=((122, 104, 92), (146, 124, 106), (104, 98, 96), (136, 132, 128), (156, 112, 88), (92, 84, 80)),
        flat=((206, 204, 198), (176, 172, 164), (222, 220, 214), (150, 146, 140)),
        asphalt=((112, 110, 108), (128, 126, 122), (96, 95, 94)),
        concrete=((186, 180, 168), (172, 166, 154)),
        marking=(232, 226, 190),
        cars=(
            (236, 236, 234),
            (206, 208, 210),
            (40, 42, 46),
            (150, 32, 34),
            (120, 124, 130),
            (46, 66, 110),
            (90, 80, 66),
        ),
        crowns=((58, 78, 40), (70, 88, 46), (48, 68, 38), (84, 94, 52)),
        water=(((84, 98, 84), (44, 62, 62)), ((96, 104, 82), (58, 72, 60))),
        shore=((168, 152, 120), (132, 122, 92)),
        hulls=((238, 238, 236), (226, 228, 230), (214, 210, 200)),
        decks=((224, 214, 190), (206, 208, 210), (190, 160, 120)),
    ),
    shadow=Span(0.7, 1.1),
    foliage=1.0,
    leaf=0.8,
    roofs={"gable": 4, "hip": 4, "flat": 2},
    footprint=Span(11, 20),
    height=Span(3.5, 6.5),
    block=Span(38, 52),
    lane=3.6,
    avenue=0.25,
    paving={"street": 6, "lot": 4, "apron": 1},
    waters={"lake": 2, "river": 3, "coast": 1},
    quay=0.3,
    crown=Span(1.8, 4.2),
    ship=Span(7, 13),
    sailing=0.1,
)

REGION = Domain(
    name="region",
    label_sets={
        "bctp": 403,
        "bctwp": 109,
        "": 87,
        "bctwps": 79,
        "t": 66,
        "p": 36,
        "btp": 35,
        "bcp": 25,
        "btwp": 22,
        "tw": 21,
        "ctp": 20,
        "w": 14,
        "cp": 10,
        "bt": 10,
        "ctwp": 7,
        "btw": 7,
        "twp": 5,
        "b": 5,
        "ctwps": 4,
        "bcwp": 4,
        "tp": 4,
        "btwps": 4,
        "bcwps": 4,
        "bp": 3,
        "bw": 3,
        "bct": 3,
        "bctw": 2,
        "bc": 2,
    },
    extent=Span(115, 190),
    sensor=Sensor(
        gain=(0.94, 1.0, 1.02),
        saturation=Span(0.65, 1.1),
        exposure=Span(0.85, 1.1),
        contrast=0.1,
        haze=Span(0.1, 0.28),
        haze_colour=(176, 192, 204),
        blur=Span(0.4, 1.1),
        noise=1.5,
    ),
    palette=Palette(
        ground=((98, 128, 78), (84, 112, 70), (122, 138, 88), (140, 134, 100), (104, 120, 90)),
        bare=((170, 150, 122), (156, 120, 92), (186, 170, 146), (128, 112, 88)),
        pitched=((186, 96, 70), (170, 84, 62), (196, 118, 88), (96, 124, 166), (150, 90, 74), (204, 140, 110)),
        flat=((176, 178, 180), (150, 154, 158), (204, 204, 202), (116, 150, 186), (190, 182, 170)),
        asphalt=((150, 150, 150), (134, 136, 138), (166, 164, 160)),
        concrete=((190, 190, 186), (206, 202, 192)),
        marking=(236, 236, 236),
        cars=(
            (240, 240, 240),
            (30, 32, 36),
            (220, 222, 224),
            (170, 40, 36),
            (240, 240, 240),
            (50, 80, 140),
            (220, 170, 50),
        ),
        crowns=((62, 104, 56), (52, 92, 50), (82, 116, 58), (112, 118, 54)),
        water=(((112, 150, 136), (62, 112, 116)), ((164, 144, 110), (138, 118, 86)), ((102, 140, 156), (66, 106, 134))),
        shore=((196, 182, 150), (150, 142, 116)),
        hulls=((58, 46, 50), (134, 52, 44), (46, 66, 96), (104, 56, 48), (80, 84, 88)),
        decks=((150, 84, 66), (134, 104, 84), (170, 122, 84), (104, 100, 84)),
    ),
    shadow=Span(0.3, 0.8),
    foliage=1.0,
    leaf=1.0,
    roofs={"gable": 3, "hip": 2, "flat": 4},
    footprint=Span(14, 34),
    height=Span(5, 22),
    block=Span(52, 78),
    lane=3.4,
    avenue=0.3,
    paving={"street": 8, "lot": 2, "apron": 1},
    waters={"lake": 3, "river": 4, "coast": 3},
    quay=0.4,
    crown=Span(2.2, 5.0),
    ship=Span(16, 42),
    sailing=0.6,
)

HARBOUR = Domain(
    name="harbour",
    label_sets={
        "p": 391,
        "wp": 148,
        "bcp": 128,
        "bp": 88,
        "ws": 29,
        "cp": 28,
        "wps": 22,
        "bwp": 19,
        "w": 19,
        "bctp": 18,
        "tp": 18,
        "btp": 15,
        "bwps": 12,
        "cwps": 12,
        "cwp": 10,
        "twp": 10,
        "t": 10,
        "bcwp": 9,
        "bcwps": 5,
        "tw": 2,
        "btwp": 2,
        "bw": 1,
        "ctp": 1,
    },
    extent=Span(28, 38),
    sensor=Sensor(
        gain=(0.97, 0.98, 1.06),
        saturation=Span(0.7, 0.9),
        exposure=Span(0.88, 1.04),
        contrast=0.2,
        haze=Span(0.02, 0.08),
        haze_colour=(150, 158, 170),
        blur=Span(0.0, 0.2),
        noise=5.0,
    ),
    palette=Palette(
        ground=((120, 118, 92), (132, 124, 98), (108, 110, 84), (140, 134, 112)),
        bare=((150, 140, 122), (128, 118, 104), (168, 158, 138)),
        pitched=((176, 98, 66), (150, 84, 64), (112, 72, 60), (84, 80, 82), (190, 116, 78)),
        flat=((132, 134, 136), (108, 110, 114), (164, 164, 160), (90, 92, 96)),
        asphalt=((118, 118, 120), (104, 105, 108), (132, 130, 128)),
        concrete=((176, 172, 166), (160, 154, 148), (166, 148, 136)),
        marking=(226, 226, 222),
        cars=(
            (214, 216, 220),
            (44, 46, 52),
            (92, 96, 104),
            (54, 74, 116),
            (136, 40, 40),
            (166, 168, 172),
            (70, 72, 60),
        ),
        crowns=((112, 98, 78), (98, 88, 74), (124, 108, 84), (88, 92, 66)),
        water=(((84, 104, 100), (58, 80, 82)), ((92, 104, 92), (66, 82, 72))),
        shore=((120, 116, 108), (142, 134, 118)),
        hulls=((40, 84, 156), (226, 228, 228), (54, 116, 176), (36, 110, 120), (196, 92, 44), (206, 210, 212)),
        decks=((196, 184, 156), (176, 190, 200), (140, 166, 176)),
    ),
    shadow=Span(0.9, 1.5),
    foliage=0.55,
    leaf=0.35,
    roofs={"gable": 5, "hip": 1, "flat": 4},
    footprint=Span(9, 22),
    height=Span(3.5, 8),
    block=Span(26, 34),
    lane=3.0,
    avenue=0.0,
    paving={"street": 4, "lot": 2, "apron": 5},
    waters={"coast": 8, "river": 1, "lake": 1},
    quay=0.85,
    crown=Span(1.5, 3.4),
    ship=Span(7, 14),
    sailing=0.15,
)

BUILT_IN: Mapping[str, Domain] = {domain.name: domain for domain in (SUBURB, REGION, HARBOUR)}
DOMAINS: tuple[str, ...] = tuple(BUILT_IN)


def find_domain(name: str) -> Domain:
    """Return the built-in domain of that name."""
    if name not in BUILT_IN:
        raise ValueError(f"`domain` must be one of {', '.join(DOMAINS)}; got {name!r}.")
    return BUILT_IN[name]


def frequencies(domain: Domain) -> dict[str, float]:
    """Return each label's target frequency: the fraction of scenes that are meant to contain it."""
    total = sum(domain.label_sets.values())
    return {
        label: sum(weight for held, weight in domain.label_sets.items() if label[0] in held) / total
        for label in VOCABULARY
    }
