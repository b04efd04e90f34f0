"""Pages of Markdown that show items of a report: the parts between two marks are replaced, the rest is kept.

A page has, on lines of their own, ``<!-- ldstyle: SLUG -->`` and ``<!-- end -->``. Between them goes the item of that
slug: the caption and the table, or the figure, which is stored in ``images/`` next to the page. ``rows=3`` after the
slug keeps the first rows of a table, ``omit=cost,minus_twin`` leaves out columns (``_`` stands for a space),
``caption=no`` the caption.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ldstyle.benchmark.results.data import DataAccess
from ldstyle.benchmark.results.view import NO_ACCESS
from ldstyle.files import replace_file, replace_text
from ldstyle.report.build import collect_items, find_grids, list_damaged, unknown_item
from ldstyle.report.model import Absent, Item, Picture, Table
from ldstyle.report.tables.formats import to_markdown

IMAGES = "images"

_START = re.compile(r"^<!-- ldstyle: (?P<slug>\S+)(?P<options>(?: [a-z]+=\S+)*) -->$")
_END = "<!-- end -->"


@dataclass(frozen=True)
class Mark:
    """An item that a page shows.

    Attributes:
        slug: Name of the item.
        first: Number of the line of the opening mark, from 0.
        last: Number of the line of the closing mark.
        rows: How many rows of a table are shown; ``None`` for all.
        caption: Whether the caption is shown.
        omit: Headers of columns that are left out.
    """

    slug: str
    first: int
    last: int
    rows: int | None = None
    caption: bool = True
    omit: tuple[str, ...] = ()


def find_marks(text: str, *, page: Path) -> list[Mark]:
    """Return the marks of a page in their order.

    Raises:
        ValueError: A mark is not closed, or has an option that does not exist.
    """
    marks: list[Mark] = []
    opened: Mark | None = None
    for number, line in enumerate(text.split("\n")):
        found = _START.match(line)
        if found is not None and opened is not None:
            raise ValueError(f"'{page}', line {number + 1}: the mark of {opened.slug!r} must end with `{_END}` first.")
        if found is not None:
            options = dict(option.split("=", 1) for option in found["options"].split())
            opened = _mark(found["slug"], options, number, page=page)
        elif line == _END and opened is not None:
            marks.append(replace(opened, last=number))
            opened = None
    if opened is not None:
        raise ValueError(f"'{page}': the mark of {opened.slug!r} in line {opened.first + 1} must end with `{_END}`.")
    return marks


def _mark(slug: str, options: dict[str, str], number: int, *, page: Path) -> Mark:
    rows, caption, omit = options.pop("rows", None), options.pop("caption", "yes"), options.pop("omit", "")
    right = (rows is None or (rows.isdecimal() and int(rows) > 0)) and caption in ("yes", "no") and not options
    if not right:
        raise ValueError(
            f"'{page}', line {number + 1}: a mark takes rows=N above 0, omit=COLUMN and caption=no; got {slug!r} "
            f"with rows={rows}, caption={caption}{''.join(f', {name}={value}' for name, value in options.items())}."
        )
    return Mark(
        slug,
        number,
        number,
        None if rows is None else int(rows),
        caption == "yes",
        tuple(filter(None, omit.replace("_", " ").split(","))),
    )


def update_pages(
    folders: Sequence[Path],
    pages: Sequence[Path],
    *,
    access: DataAccess = NO_ACCESS,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[list[Path], list[Absent], tuple[str, ...]]:
    """Update the marked parts of pages from results folders.

    Args:
        folders: Results folders of ``ldstyle bench``.
        pages: Markdown files with marks.
        access: Data that may be read outside the folders.
        progress: Called with the name of each item before it is made.

    Returns:
        The files written (figures and pages), the items that could not be made, and what could not be read.

    Raises:
        ValueError: A page has no mark or a wrong one, or no item has the slug of a mark. No page is then changed.
        FileNotFoundError: A folder contains no results, or a page is missing.
    """
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    marks = {page: find_marks(text, page=page) for page, text in texts.items()}
    for page, found in marks.items():
        if not found:
            raise ValueError(f"'{page}' must have a mark such as `<!-- ldstyle: leaderboard -->`, closed by `{_END}`.")
    wanted = list(dict.fromkeys(mark.slug for found in marks.values() for mark in found))
    grids = find_grids(folders, access=access)
    made, known = collect_items(grids, only=wanted, progress=progress)
    items = {item.slug: item for _, item in made}
    for slug in wanted:
        if slug not in items:
            raise unknown_item(slug, known)
    written: list[Path] = []
    changed: dict[Path, str] = {}
    for page, text in texts.items():
        lines = text.removesuffix("\n").split("\n")
        for mark in reversed(marks[page]):
            body = _shown(items[mark.slug], mark, page, written)
            lines[mark.first + 1 : mark.last] = ["", *body.strip("\n").splitlines(), ""]
        changed[page] = "\n".join(lines) + "\n"
    for page, text in changed.items():
        replace_text(page, text)
    absent = [item for item in items.values() if isinstance(item, Absent)]
    return [*dict.fromkeys(written), *changed], absent, list_damaged(grids, absent)


def _shown(item: Item, mark: Mark, page: Path, written: list[Path]) -> str:
    match item:
        case Table():
            kept = _without_columns(replace(item, rows=item.rows[: mark.rows]), mark.omit)
            _, caption, table = to_markdown(kept).split("\n\n", 2)
            return f"{caption}\n\n{table}" if mark.caption else table
        case Picture():
            written.append(_save(item, page))
            picture = f"![{item.title}]({IMAGES}/{written[-1].name})"
            return f"{picture}\n\n{item.caption}" if mark.caption else picture
        case Absent():
            return f"*{item.title}: not available.*"  # the reason may name paths of this machine


def _without_columns(table: Table, omitted: Sequence[str]) -> Table:
    unknown = [name for name in omitted if name not in table.headers]
    if unknown:
        raise ValueError(
            f"omit must name a column of {table.slug!r}; got {unknown[0]!r}. It has {list(table.headers)}."
        )
    kept = [number for number, header in enumerate(table.headers) if header not in omitted]
    rows = tuple(replace(row, values=tuple(row.values[number] for number in kept)) for row in table.rows)
    return replace(table, columns=tuple(table.columns[number] for number in kept), rows=rows)


def _save(picture: Picture, page: Path) -> Path:
    """Store a figure as ``images/PAGE-SLUG.png`` next to its page."""
    from tempfile import TemporaryDirectory

    from ldstyle.report.figures.style import save_picture

    path = page.parent / IMAGES / f"{page.stem}-{picture.slug}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        made = save_picture(picture, Path(folder))["png"].read_bytes()
    replace_file(path, lambda file: file.write(made))
    return path
