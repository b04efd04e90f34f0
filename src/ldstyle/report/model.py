"""The parts of a report: typed tables, pictures, and items that could not be made.

Tables contain numbers and names. They become text in a renderer: :mod:`ldstyle.report.tables.formats` writes Markdown,
LaTeX and CSV, :mod:`ldstyle.report.html.page` writes HTML. All of them print an entry as its ``text``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DASH = "–"
MINUS = "−"


@dataclass(frozen=True, kw_only=True)
class Value:
    """One entry of a table; this class itself is an entry without a value.

    Attributes:
        number: The number to sort by and for CSV, in the unit of the column; ``None`` for words and absent values.
        best: Printed bold.
        note: Why the entry is incomplete, e.g. ``seed 3 failed``.
    """

    number: float | None = None
    best: bool = False
    note: str = ""

    @property
    def text(self) -> str:
        """The entry as readers see it, without marks of any format."""
        return DASH

    @property
    def details(self) -> Mapping[str, float | None]:
        """Further columns of CSV: ``sd``, ``n``, ``low`` and ``high``, where the entry has them."""
        return {}


@dataclass(frozen=True)
class Word(Value):
    """A name or another word."""

    word: str

    @property
    def text(self) -> str:
        """The word."""
        return self.word


@dataclass(frozen=True, kw_only=True)
class Number(Value):
    """A number.

    Attributes:
        digits: Digits after the point; ``None`` prints as few as the number needs.
        signed: Whether a positive number has its sign.
        dash_zero: Whether zero is a dash.
        unit: Printed after the number.
    """

    digits: int | None = None
    signed: bool = False
    dash_zero: bool = False
    unit: str = ""

    @property
    def text(self) -> str:
        """The number, or a dash."""
        if self.number is None or (self.dash_zero and self.number == 0):
            return DASH
        if self.digits is None:
            return f"{self.number:g}{self.unit}"
        return (signed if self.signed else plain)(self.number, digits=self.digits) + self.unit


@dataclass(frozen=True, kw_only=True)
class Mean(Value):
    """A mean over seeds.

    Attributes:
        sd: Standard deviation over seeds.
        n: Number of seeds in the mean.
        missing: Number of seeds without a value.
        digits: Digits after the point.
        show_sd: Whether the deviation is printed.
    """

    sd: float | None = None
    n: int = 0
    missing: int = 0
    digits: int = 1
    show_sd: bool = True

    @property
    def text(self) -> str:
        """E.g. ``60.0 ± 14.1 (n = 2)``, with n where seeds are missing."""
        if self.number is None:
            return DASH
        text = plain(self.number, digits=self.digits)
        if self.show_sd and self.sd is not None:
            text += f" ± {plain(self.sd, digits=self.digits)}"
        return text + (f" (n = {self.n})" if self.missing else "")

    @property
    def details(self) -> Mapping[str, float | None]:
        """Standard deviation and number of seeds."""
        return {"sd": self.sd, "n": self.n}


@dataclass(frozen=True, kw_only=True)
class Change(Value):
    """A mean paired difference in percentage points.

    Attributes:
        low: Lower end of the bootstrap interval; ``None`` below three seeds.
        high: Upper end.
        by_seed: The differences of the seeds.
        missing: Number of seeds without a pair.
        show_interval: Whether the interval, or the differences of fewer seeds, are printed after the mean.
    """

    low: float | None = None
    high: float | None = None
    by_seed: tuple[float, ...] = ()
    missing: int = 0
    show_interval: bool = False

    @property
    def text(self) -> str:
        """E.g. ``+1.0 [0.0, +2.0]`` or ``+0.5 (0.0, +1.0)``."""
        if self.number is None:
            return DASH
        text = signed(self.number)
        if self.show_interval and self.low is not None and self.high is not None:
            text += f" [{signed(self.low)}, {signed(self.high)}]"
        elif self.show_interval and len(self.by_seed) > 1:
            text += f" ({_listed(self.by_seed)})"
        return text + (f" (n = {len(self.by_seed)})" if self.missing else "")

    @property
    def details(self) -> Mapping[str, float | None]:
        """Number of pairs and ends of the interval."""
        return {"n": len(self.by_seed), "low": self.low, "high": self.high}


@dataclass(frozen=True, kw_only=True)
class Interval(Value):
    """The interval of a change, in a column of its own; CSV has its ends next to the change.

    Attributes:
        high: Upper end; ``number`` is the lower one.
        by_seed: The differences of the seeds, which are listed without an interval.
        smallest_p: The smallest p-value that so many pairs allow.
    """

    high: float | None = None
    by_seed: tuple[float, ...] = ()
    smallest_p: float = 1.0

    @property
    def text(self) -> str:
        """E.g. ``[0.0, +2.0]``, or ``+5.0, +15.0; p ≥ 0.5``."""
        if self.number is not None and self.high is not None:
            return f"[{signed(self.number)}, {signed(self.high)}]"
        return f"{_listed(self.by_seed)}; {at_least(self.smallest_p)}"


@dataclass(frozen=True, kw_only=True)
class PValue(Value):
    """A p-value."""

    @property
    def text(self) -> str:
        """Three digits, or ``< 0.001``."""
        return DASH if self.number is None else "< 0.001" if self.number < 0.001 else f"{self.number:.3f}"


@dataclass(frozen=True, kw_only=True)
class Span(Value):
    """A range of whole numbers, and optionally the number within it."""

    low: float
    high: float
    show_number: bool = True

    @property
    def text(self) -> str:
        """E.g. ``10 (9–12)`` or ``9–12``."""
        ends = f"{plain(self.low, digits=0)}–{plain(self.high, digits=0)}"
        return f"{plain(self.number or 0, digits=0)} ({ends})" if self.show_number else ends

    @property
    def details(self) -> Mapping[str, float | None]:
        """The ends."""
        return {"low": self.low, "high": self.high}


@dataclass(frozen=True)
class Column:
    """The header of a column, and the method or split that it belongs to."""

    title: str
    method: str | None = None
    split: str | None = None


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        values: One per column; the first names the row.
        method: Method that the row is of.
        split: Split that the row is of.
        baseline: Method that the row compares with.
    """

    values: tuple[Value, ...]
    method: str | None = None
    split: str | None = None
    baseline: str | None = None


@dataclass(frozen=True)
class Table:
    """A table, before it becomes Markdown, LaTeX, CSV or HTML.

    Attributes:
        slug: Name of its files.
        title: A few words.
        caption: What is shown, over how many seeds, and how to read it.
        columns: Headers.
        rows: Rows, with as many values as there are columns.
        rules: Rows before which a line is drawn.
        split: Split that the table is of.
    """

    slug: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    rules: tuple[int, ...] = ()
    split: str | None = None

    def __post_init__(self) -> None:
        wrong = [len(row.values) for row in self.rows if len(row.values) != len(self.columns)]
        if wrong:
            raise ValueError(f"Rows of '{self.slug}' must have {len(self.columns)} entries; got {wrong[0]}.")

    @property
    def headers(self) -> tuple[str, ...]:
        """Titles of the columns."""
        return tuple(column.title for column in self.columns)

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Whether each column contains numbers, or would if there were any."""
        columns = [[row.values[n] for row in self.rows] for n in range(len(self.columns))]
        return tuple(
            any(value.number is not None for value in values) or all(value.text == DASH for value in values)
            for values in columns
        )

    @property
    def notes(self) -> dict[str, str]:
        """Footnote mark of each note in order of reading: a, b, …, z, aa; equal notes share one."""
        found = dict.fromkeys(value.note for row in self.rows for value in row.values if value.note)
        return {note: _letters(number) for number, note in enumerate(found)}


@dataclass(frozen=True)
class Picture:
    """A figure, before it becomes PNG and SVG, and its data.

    Attributes:
        slug: Name of its files.
        title: A few words.
        caption: What is shown and how to read it.
        draw: Draws it; called once for each size and background.
        data: The data shown, as plain values for JSON.
        photographic: Made of images, so that a page should embed its PNG and not its SVG.
        stacks: Photographic, and drawn again for small screens.
    """

    slug: str
    title: str
    caption: str
    draw: Callable[[], Figure]
    data: Mapping[str, Any] = field(repr=False)
    photographic: bool = False
    stacks: bool = False


@dataclass(frozen=True)
class Absent:
    """An item that could not be made.

    Attributes:
        slug: Name of its files.
        title: A few words.
        reason: Why it could not be made, and how to get it. Commands are in backticks and run as printed.
        optional: Nobody requested it, so a page does not mention it.
        damaged: A record contains something else than it must.
    """

    slug: str
    title: str
    reason: str
    optional: bool = False
    damaged: bool = False


Item: TypeAlias = Table | Picture | Absent


@dataclass(frozen=True)
class Section:
    """Items under one heading.

    Attributes:
        title: Heading.
        items: The items.
        grid: Name of the grid that they are of; ``None`` for none in particular.
    """

    title: str
    items: Sequence[Item]
    grid: str | None = None


def plain(value: float, *, digits: int) -> str:
    """Return a number with some digits after the point and a true minus sign."""
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.removeprefix("-")
    return text.replace("-", MINUS)


def signed(value: float, *, digits: int = 1) -> str:
    """Return a number with its sign; a number that rounds to zero has none."""
    text = plain(value, digits=digits)
    return text if text.startswith(MINUS) or float(text) == 0 else f"+{text}"


def at_least(p: float) -> str:
    """Return e.g. ``p ≥ 0.5``."""
    return f"p ≥ {p:.2g}"


def _listed(values: Iterable[float]) -> str:
    return ", ".join(signed(value) for value in values)


def _letters(number: int) -> str:
    more, last = divmod(number, 26)
    return (_letters(more - 1) if more else "") + chr(ord("a") + last)
