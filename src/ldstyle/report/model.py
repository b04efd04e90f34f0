"""What a report is made of: tables, pictures, and what could not be made, gathered in sections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Value:
    """One entry of a table.

    Attributes:
        text: What is printed, without marks of any format.
        number: What it is sorted by; ``None`` for words and for entries without a value.
        best: Printed bold.
        note: Why the entry is not whole, e.g. ``seed 3 failed``.
    """

    text: str
    number: float | None = None
    best: bool = False
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table, before it becomes Markdown, LaTeX, CSV or HTML.

    Attributes:
        slug: Name of its files.
        title: A few words.
        caption: What is shown, over how many seeds, and how to read it.
        columns: Headers.
        rows: Entries, as many per row as there are columns; the first of a row names it.
        rules: Rows before which a line is drawn.
    """

    slug: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    rules: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        wrong = [len(row) for row in self.rows if len(row) != len(self.columns)]
        if wrong:
            raise ValueError(f"Rows of '{self.slug}' must have {len(self.columns)} entries; got {wrong[0]}.")


@dataclass(frozen=True)
class Picture:
    """A figure, before it becomes PNG and SVG, and the data behind it.

    Attributes:
        slug: Name of its files.
        title: A few words.
        caption: What is shown and how to read it.
        draw: Draws it; called once for each size and background.
        data: What it shows, as plain values for JSON.
        photographic: Made of images, so that a page should embed its PNG and not its SVG.
    """

    slug: str
    title: str
    caption: str
    draw: Callable[[], Figure]
    data: Mapping[str, Any] = field(repr=False)
    photographic: bool = False


@dataclass(frozen=True)
class Absent:
    """Something the report would have, and why it is not there.

    Attributes:
        slug: Name it would have.
        title: A few words.
        reason: Why it could not be made, and what to do to get it.
        optional: Nobody asked for it, so a page does not show that it is not there.
        damaged: It could not be made because a record holds something else than it must.
    """

    slug: str
    title: str
    reason: str
    optional: bool = False
    damaged: bool = False


Item: TypeAlias = Table | Picture | Absent


@dataclass(frozen=True)
class Section:
    """Items under one heading."""

    title: str
    items: Sequence[Item]
