"""The common look of all figures: a colour, marker and line per method, sizes for print, reproducible files."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from ldstyle.benchmark.grid.methods import ORACLE
from ldstyle.benchmark.results.view import Results
from ldstyle.files import replace_file, replace_text
from ldstyle.report.model import Picture
from ldstyle.report.tables.entries import part_text

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#7F7F7F"
COLOURS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, BLACK)
"""Okabe and Ito's colours, which all kinds of colour vision tell apart; yellow is left out, pale on white paper."""

MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")
INK, QUIET, FAINT = "#222222", "#6b6b6b", "#d9d9d9"
WIDTH = 7.1
"""Width in inches of a figure over both columns of a page."""

SMALL_WIDTH = 3.5
"""Width in inches of a figure for a small screen, where panels stand one below the other."""

PART = "all"
"""Part of the target that figures show: all of it, as the tables that come first."""

PAPER = "#ffffff"
DARK: Mapping[str, str] = {
    PAPER: "#1d2025",
    INK: "#e4e6e9",
    BLACK: "#f7f8fa",
    QUIET: "#a3abb5",
    GREY: "#969ca4",
    FAINT: "#3b414a",
    BLUE.lower(): "#4ba6e3",
}
"""Replacements of colours on a dark page; the others are visible on both."""

_SMALL: ContextVar[bool] = ContextVar("small", default=False)
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML does not allow, which SVG holds in comments."""

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
    "text.parse_math": False,  # names of labels, domains and methods are text, whatever characters they have
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


class UnavailableError(Exception):
    """Something that a figure needs is missing; the text names it and the way to get it.

    Attributes:
        optional: Nobody requested it, so a page does not mention it.
    """

    def __init__(self, reason: str, *, optional: bool = False) -> None:
        super().__init__(reason)
        self.optional = optional


@dataclass(frozen=True)
class Plate:
    """The content of a figure; see :class:`~ldstyle.report.model.Picture` for its attributes."""

    caption: str
    draw: Callable[[], Figure]
    data: Mapping[str, Any]
    photographic: bool = False
    stacks: bool = False


def require_done(results: Results) -> None:
    """Raise :class:`UnavailableError` for a grid without a finished cell."""
    if not results.main.done:
        raise UnavailableError(
            f"No cell is done. Run `{results.command()}` and watch it by `{results.command('status')}`."
        )


def target_text(grid: Results) -> str:
    """Return the images that scores are of, with their number."""
    return part_text(grid.without(ORACLE), PART)


def split_title(split: str, target: str) -> str:
    """Name a split by its target."""
    return f"{' '.join(split.split())}: target {target}"


def seeds_per_method(grid: Results) -> str:
    """Return how many seeds the methods have, e.g. ``2 to 3 seeds``."""
    counts = sorted({sum(cell.method == m and cell.split == s for cell in grid.done)
                     for m in grid.done_titles for s in grid.done_splits} - {0})  # fmt: skip
    if not counts:
        return "no seeds"
    text = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{text} seed{'s' if counts[-1] > 1 else ''}"


@dataclass(frozen=True)
class Look:
    """How a method is drawn; any two methods of a set differ in more than their colour.

    Attributes:
        colour: Colour.
        marker: Shape of its points.
        line: Line style, by its name or its dashes.
        fill: ``full``, ``left``, ``right``, ``bottom`` or ``top`` (half filled), or ``none`` (hollow).
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
_SOURCES = {"": ("-", "full"), "gc": ("--", "left"), "probe": ("-.", "right"), "masks": ((0, (1, 1)), "bottom")}
_BARE = {"s": "H", "^": "v", "D": "d"}
_OTHERS = {
    "erm": Look(BLACK, "o"),
    "swad": Look(PURPLE, "P", "-."),
    "oracle": Look(GREY, "*", (0, (1, 1))),
    "csu-published": Look(ORANGE, "d", ":", "none"),
    "dsu": Look(SKY, "v", ":", "none"),
    "fact": Look(BLUE, "X", ":", "none"),
    "mixup": Look(ORANGE, "P", ":", "none"),
    "coral": Look(GREEN, "p", ":", "none"),
    "miro": Look(VERMILLION, "h", ":", "none"),
    "groupdro": Look(PURPLE, "8", ":", "none"),
    "sagm": Look(SKY, "<", ":", "none"),
    "erm++": Look(BLACK, ">", ":", "none"),
}


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """Return the look of each method: known ones always the same, others by their position among the unknown.

    The operator gives colour and shape; global methods are hollow and dotted, learned attention is filled and solid,
    cached maps, those of a probe and masks are half filled on the left, the right and at the bottom, and dashed.
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
    if method.endswith("-paper"):
        look = _known(method.removesuffix("-paper"))
        return (
            None if look is None else replace(look, line=(0, (3, 1, 1, 1)), marker=_BARE.get(look.marker, look.marker))
        )
    if method in _OTHERS:
        return _OTHERS[method]
    if method in _OPERATORS:
        return Look(*_OPERATORS[method], ":", "none")
    operator, _, source = method.removeprefix("ld-").partition("-")
    if not method.startswith("ld-") or operator not in _OPERATORS or source not in _SOURCES:
        return None
    return Look(*_OPERATORS[operator], *_SOURCES[source])


@contextmanager
def printed() -> Iterator[None]:
    """Draw by the settings of this module, whatever the user's own are."""
    with matplotlib.style.context(["default", SETTINGS]), warnings.catch_warnings():
        # Names may be of any script; letters that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def small_screen() -> bool:
    """Whether a figure is being drawn for a small screen."""
    return _SMALL.get()


def new_figure(height: float, *, width: float = WIDTH) -> Figure:
    """Return an empty figure of some inches whose parts make room for each other."""
    return Figure(figsize=(min(width, SMALL_WIDTH) if _SMALL.get() else width, height), layout="constrained")


def arrange(count: int, columns: int) -> tuple[int, int]:
    """Return how many of some panels stand side by side, and how many rows they take."""
    across = 1 if _SMALL.get() else min(columns, count)
    return across, -(-count // across)


def panels(figure: Figure, count: int, *, columns: int, rows_each: int = 1, **settings: Any) -> list[list[Axes]]:
    """Lay out panels, at most ``columns`` side by side, each of ``rows_each`` axes one above the other.

    Returns:
        The axes of each panel, from top to bottom.
    """
    across, down = arrange(count, columns)
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
        Line2D([], [], linestyle=look[name].line if lines else "none", label=_label(title), **look[name].points())
        for name, title in titles.items()
    ]
    handles += [Line2D([], [], label=_label(name), **settings) for name, settings in (others or {}).items()]
    widest = max(len(_label(title)) for title in titles.values())
    columns = max(1, min(len(handles), int(figure.get_figwidth() / (0.55 + 0.068 * widest))))
    if _SMALL.get():  # the rows of the legend would take their room from the panels
        figure.set_figheight(figure.get_figheight() + 0.18 * -(-len(handles) // columns))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=2.6 if lines else 1.2)


def shorten(text: str, length: int = 22) -> str:
    """Make one line of a name, and cut it where it would take the room of the figure."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


def save_picture(picture: Picture, folder: Path) -> dict[str, Path]:
    """Draw a picture and write ``SLUG.png``, ``SLUG.svg`` and its data as ``SLUG.json``.

    The same picture gives the same bytes: the files contain no times and no random numbers.

    Returns:
        The paths by suffix.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {suffix: folder / f"{picture.slug}.{suffix}" for suffix in ("png", "svg", "json")}
    figure = picture.draw()
    with printed():
        replace_file(paths["png"], lambda file: figure.savefig(file, format="png"))
    replace_text(paths["svg"], svg_of(figure))
    replace_text(paths["json"], json.dumps(picture.data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return paths


def small_svg(picture: Picture) -> str:
    """Draw a picture for a small screen, its panels one below the other, as SVG."""
    return svg_of(_small(picture))


def small_png(picture: Picture) -> bytes:
    """Draw a picture of photographs for a small screen."""
    return _png(_small(picture))


def dark_png(picture: Picture, *, small: bool = False) -> bytes:
    """Draw a picture of photographs for a dark page: its paper and its letters change, the photographs do not."""
    figure = _small(picture) if small else picture.draw()
    for text in figure.findobj(Text):
        colour = to_hex(text.get_color())
        if colour != PAPER:  # white letters stand on photographs
            text.set_color(DARK.get(colour, colour))
    return _png(figure, facecolor=DARK[PAPER])


def _small(picture: Picture) -> Figure:
    token = _SMALL.set(True)
    try:
        return picture.draw()
    finally:
        _SMALL.reset(token)


def _png(figure: Figure, **settings: Any) -> bytes:
    content = BytesIO()
    with printed():
        figure.savefig(content, format="png", **settings)
    return content.getvalue()


def svg_of(figure: Figure) -> str:
    """Return a figure as SVG; it contains no times and no random numbers."""
    content = BytesIO()
    with printed():
        figure.savefig(content, format="svg", metadata={"Date": None})
    return _FORBIDDEN.sub("", content.getvalue().decode())


def _label(title: str) -> str:
    """Return a name as a legend shows it: not too long, and not left out for beginning with an underscore."""
    text = shorten(" ".join(title.split()), 40)
    return f" {text}" if text.startswith("_") else text
