"""The look all figures share: a colour, marker and line per method, sizes for print, and files that never differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ldstyle.report.items import Picture
from ldstyle.training.atomic import replace_file, replace_text

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#7F7F7F"
COLOURS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, BLACK)
"""Okabe and Ito's colours, which all kinds of colour vision tell apart; yellow is left out, pale on white paper."""

MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")
INK, QUIET, FAINT = "#222222", "#6b6b6b", "#d9d9d9"
WIDTH = 7.1
"""Width in inches of a figure over both columns of a page."""

SETTINGS = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine draws the same letters
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.labelsize": 8,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "text.color": INK,
    "xtick.color": QUIET,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 7.5,
    "ytick.color": QUIET,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 7.5,
    "figure.dpi": 200,
    "figure.facecolor": "white",
    "savefig.dpi": "figure",
    "svg.hashsalt": "ldstyle",  # else names inside the file are drawn at random
    "svg.fonttype": "path",
}


@dataclass(frozen=True)
class Look:
    """How a method is drawn; any two methods of a set differ in more than their colour.

    Attributes:
        colour: Colour.
        marker: Shape of its points.
        line: Line style, by its name or its dashes.
        fill: ``full``, ``left`` (half filled) or ``none`` (hollow).
    """

    colour: str
    marker: str
    line: Any = "-"
    fill: str = "full"

    def points(self) -> dict[str, Any]:
        """Return settings of a line's markers."""
        filled = "white" if self.fill == "none" else self.colour
        return {
            "color": self.colour,
            "marker": self.marker,
            "fillstyle": "full" if self.fill == "none" else self.fill,
            "markerfacecolor": filled,
            "markerfacecoloralt": "white",
            "markeredgecolor": self.colour,
            "markeredgewidth": 1.0,
        }


_OPERATORS = {"mixstyle": (BLUE, "s"), "efdmix": (VERMILLION, "^"), "csu": (GREEN, "D")}
_OTHERS = {
    "erm": Look(BLACK, "o"),
    "swad": Look(PURPLE, "P", "-."),
    "oracle": Look(GREY, "*", (0, (1, 1))),
    "csu-published": Look(ORANGE, "d", ":", "none"),
    "dsu": Look(SKY, "v", ":", "none"),
}


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """Return the look of each method: known ones always the same, others by their position among the unknown.

    The operator gives colour and shape; global methods are hollow and dotted, learned attention is filled and solid,
    cached maps are half filled and dashed.
    """
    found: dict[str, Look] = {}
    unknown = 0
    for method in methods:
        look = _known(method)
        if look is None:
            lines = ("-", "--", "-.")
            look = Look(
                COLOURS[unknown % len(COLOURS)],
                ("p", "h", "<", ">", "8", "X")[unknown % 6],
                lines[unknown // len(COLOURS) % len(lines)],
            )
            unknown += 1
        found[method] = look
    return found


def _known(method: str) -> Look | None:
    if method.endswith("+swad"):
        look = _known(method.removesuffix("+swad"))
        return None if look is None else replace(look, line=(0, (6, 1, 1, 1, 1, 1)), fill="top")
    if method in _OTHERS:
        return _OTHERS[method]
    operator = method.removeprefix("ld-").removesuffix("-gc")
    if operator not in _OPERATORS or (method.endswith("-gc") and not method.startswith("ld-")):
        return None
    colour, marker = _OPERATORS[operator]
    if not method.startswith("ld-"):
        return Look(colour, marker, ":", "none")
    return Look(colour, marker, "--", "left") if method.endswith("-gc") else Look(colour, marker)


@contextmanager
def printed() -> Iterator[None]:
    """Draw by the settings of this module, whatever the user's own are."""
    with matplotlib.style.context(["default", SETTINGS]):
        yield


def drawing(draw: Callable[[], Figure]) -> Callable[[], Figure]:
    """Let a figure be drawn by the settings of this module."""

    def drawn() -> Figure:
        with printed():
            return draw()

    return drawn


def new_figure(height: float, *, width: float = WIDTH) -> Figure:
    """Return an empty figure of some inches whose parts make room for each other."""
    return Figure(figsize=(width, height), layout="constrained")


def panels(figure: Figure, count: int, *, columns: int, rows_each: int = 1, **settings: Any) -> list[list[Axes]]:
    """Lay out panels, at most ``columns`` side by side, each of ``rows_each`` axes one above the other.

    Returns:
        The axes of each panel, from top to bottom.
    """
    across = min(columns, count)
    down = -(-count // across)
    grid = figure.subplots(down * rows_each, across, squeeze=False, **settings)
    for blank in range(count, down * across):
        for row in range(rows_each):
            grid[blank // across * rows_each + row, blank % across].set_axis_off()
    return [[grid[n // across * rows_each + row, n % across] for row in range(rows_each)] for n in range(count)]


def method_legend(
    figure: Figure,
    titles: Mapping[str, str],
    look: Mapping[str, Look],
    *,
    lines: bool = True,
    others: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Name the methods below the figure.

    Args:
        figure: The figure.
        titles: Name of each method.
        look: Look of each.
        lines: Whether they have lines, or points only.
        others: Lines that are no methods, by name.
    """
    handles = [
        Line2D([], [], linestyle=look[name].line if lines else "none", label=title, **look[name].points())
        for name, title in titles.items()
    ]
    handles += [Line2D([], [], label=name, **settings) for name, settings in (others or {}).items()]
    widest = max(map(len, titles.values()))
    columns = max(1, min(len(handles), int(figure.get_figwidth() / (0.55 + 0.068 * widest))))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=2.6 if lines else 1.2)


def shorten(text: str, length: int = 22) -> str:
    """Cut a name that would take the room of the figure."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def save_picture(picture: Picture, folder: Path) -> dict[str, Path]:
    """Draw a picture and write ``SLUG.png``, ``SLUG.svg`` and its data as ``SLUG.json``.

    The same picture gives the same bytes: nothing in the files tells time or chance.

    Returns:
        The paths by suffix.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {suffix: folder / f"{picture.slug}.{suffix}" for suffix in ("png", "svg", "json")}
    figure = picture.draw()
    with printed():
        replace_file(paths["png"], lambda file: figure.savefig(file, format="png"))
        replace_file(paths["svg"], lambda file: figure.savefig(file, format="svg", metadata={"Date": None}))
    replace_text(paths["json"], json.dumps(picture.data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return paths
