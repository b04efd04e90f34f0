"""Tables, figures and what is absent as HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from typing import NamedTuple, TypeAlias

from PIL import Image

from ldstyle.benchmark.results.records import CellResult
from ldstyle.report.html.markup import Markup, data_uri, element, join, plain_json, with_code
from ldstyle.report.model import Absent, Picture, Table, Value
from ldstyle.report.tables.cells import CellSet
from ldstyle.report.tables.values import DASH


class Drawn(NamedTuple):
    """A picture as it was drawn.

    Attributes:
        png: On white.
        svg: On white.
        small: SVG for small screens; the other one where it is empty.
        dark: PNG for dark pages, of pictures of photographs only.
    """

    png: bytes
    svg: str
    small: str = ""
    dark: bytes = b""


Formats: TypeAlias = Mapping[str, Callable[[Table], str]]
"""How tables become text, by the ending of the file that holds it."""

_KINDS = {"csv": "text/csv", "json": "application/json", "md": "text/markdown", "tex": "application/x-tex"}
_FORMAT_TITLES = {"csv": "CSV", "md": "Markdown", "tex": "LaTeX"}
_SVG = "image/svg+xml"
_PREVIEW = 1500
_QUALITY = 88  # of photographs; letters among them stay sharp


class Names:
    """Finds the methods and splits that words name.

    Args:
        methods: Names of methods by what tables call them.
        splits: Names of splits by what tables call them.
    """

    def __init__(self, methods: Mapping[str, str], splits: Mapping[str, str]) -> None:
        self._methods, self._splits = methods, splits
        self._in_text, self._at_start = _either(methods), _either(set(splits.values()))

    @classmethod
    def of(cls, runs: Mapping[str, Sequence[CellResult]]) -> Names:
        """Collect the names that runs go by."""
        cells = [cell for grid in runs.values() for cell in grid]
        methods = {name: cell.method for cell in cells for name in (cell.method, cell.title)}
        methods |= {title: method for grid in runs.values() for method, title in method_titles(grid).items()}
        splits = {name: cell.split for cell in cells for name in (cell.target, cell.split)}
        return cls(methods, splits)

    def in_row(self, row: Sequence[Value]) -> dict[str, str | None]:
        """Return the attributes of a row: methods that its name holds, methods and splits that its words are."""
        words = [value.text for value in row if value.number is None]
        methods = [self._methods[name] for name in self._in_text.findall(row[0].text)]
        methods += [self._methods[word] for word in words if word in self._methods]
        splits = [self._splits[word] for word in words if word in self._splits]
        return {"data_methods": _listed(methods), "data_splits": _listed(splits)}

    def in_header(self, header: str) -> dict[str, str | None]:
        """Return the attributes of a header: the method it is, but for what follows in brackets, or its split."""
        bare = re.sub(r"\s*\([^)]*\)$", "", header)
        return {"data_methods": self._methods.get(bare), "data_splits": self.in_title(header)}

    def in_title(self, title: str) -> str | None:
        """Return the split that a title begins with, e.g. in ``s1: target ucm`` or ``s1 → ucm``."""
        found = self._at_start.match(title)
        return found[0] if found and re.match(r":| →|$", title[found.end() :]) else None


def method_titles(cells: Sequence[CellResult]) -> dict[str, str]:
    """Return what tables call the methods of a grid; a row of the benchmark goes by its own title everywhere."""
    return {cell.method: cell.title for cell in cells} | CellSet(cells).titles


def _either(names: Iterable[str]) -> re.Pattern[str]:
    """Match any of the names where it stands alone."""
    # The longest first, or `EFDMix + SWAD` would be taken for `EFDMix`.
    listed = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(rf"(?<![\w+~=-])(?:{listed or '(?!)'})(?![\w+~=-])")


def _listed(names: Sequence[str]) -> str | None:
    return "\t".join(dict.fromkeys(names)) or None


def render_table(table: Table, names: Names, command: str, formats: Formats) -> Markup:
    """Return a table that can be sorted and filtered, with downloads and the command that makes it again."""
    numeric = [_is_numeric([row[i] for row in table.rows]) for i in range(len(table.columns))]
    header = [
        header_cell(column, numeric=numeric[i], **names.in_header(column)) for i, column in enumerate(table.columns)
    ]
    notes = dict.fromkeys(value.note for row in table.rows for value in row if value.note)
    marks = {note: _letters(n) for n, note in enumerate(notes)}
    rows = []
    for number, row in enumerate(table.rows):
        ruled = number in table.rules
        cells = [
            body_cell(value, _footmark(value, marks), first=i == 0, numeric=numeric[i]) for i, value in enumerate(row)
        ]
        rows.append(element("tr", *cells, class_="rule" if ruled else None, data_rule=ruled, **names.in_row(row)))
    links = [
        _download(_FORMAT_TITLES.get(ending, ending), f"{table.slug}.{ending}", write(table))
        for ending, write in formats.items()
    ]
    return join(
        element("p", table.caption, class_="caption"),
        scrolling_table(table.title, header, rows, class_="filtered"),
        element(
            "ul", *(element("li", element("sup", mark), f" {note}") for note, mark in marks.items()), class_="notes"
        )
        if marks
        else Markup(),
        element("div", *links, _remake(command), class_="tools"),
    )


def _is_numeric(column: Sequence[Value]) -> bool:
    """Whether a column is one of numbers, which dashes may stand for."""
    return any(value.number is not None for value in column) or all(value.text == DASH for value in column)


def _footmark(value: Value, marks: Mapping[str, str]) -> Markup:
    return element("sup", marks[value.note], title=value.note) if value.note else Markup()


def _letters(number: int) -> str:
    """Count a, b, ..., z, aa, ab, ..."""
    more, last = divmod(number, 26)
    return (_letters(more - 1) if more else "") + chr(ord("a") + last)


def scrolling_table(title: str, header: Sequence[Markup], rows: Sequence[Markup], **attributes: str) -> Markup:
    """Put a table into a box of its own that scrolls, also by keys, where it is wider than the page."""
    table = element(
        "table", element("thead", element("tr", *header)), element("tbody", *rows), aria_label=title, **attributes
    )
    nothing = element("p", "Nothing passes the filter.", class_="nothing", hidden=True)
    return element("div", table, nothing, class_="scroll", role="region", tabindex="0", aria_label=title)


def header_cell(text: str, *, numeric: bool, **attributes: str | None) -> Markup:
    """Return a header that sorts its column when it is pressed."""
    button = element("button", text, type="button", class_="sort")
    return element("th", button, scope="col", aria_sort="none", class_="n" if numeric else None, **attributes)


def body_cell(
    value: Value, *after: Markup, first: bool = False, numeric: bool = False, mark: str | None = None
) -> Markup:
    """Return an entry of a table.

    Args:
        value: The entry.
        after: What stands after its text.
        first: Whether it names its row.
        numeric: Whether its column is one of numbers.
        mark: Class of its text.
    """
    text = element("strong", value.text) if value.best else join(value.text)
    shown = text if mark is None else element("span", text, class_=mark)
    kind = {"scope": "row" if first else None, "class_": "n" if numeric else None}
    number = None if value.number is None else repr(float(value.number))
    return element("th" if first else "td", shown, *after, data_n=number, **kind)


def _download(text: str, name: str, content: str) -> Markup:
    kind = _KINDS.get(name.rpartition(".")[2], "text/plain")
    return element("a", text, href=data_uri(content, f"{kind};charset=utf-8"), download=name)


def _remake(command: str) -> Markup:
    copy = element("button", "Copy", type="button", class_="quiet copy")
    box = element("div", element("code", command, tabindex="0"), copy, class_="command")
    return element("details", element("summary", "Make it again"), box)


def render_picture(picture: Picture, drawn: Drawn, command: str) -> Markup:
    """Return a figure with the data behind it and the command that makes it again."""
    image = _photograph(picture, drawn) if picture.photographic else _drawing(picture, drawn)
    data = plain_json(picture.data, indent=1)
    preview = data if len(data) <= _PREVIEW else f"{data[:_PREVIEW]}\n…"
    disclosed = element(
        "details",
        element("summary", "Data"),
        element("pre", preview, tabindex="0"),
        _download("Download all of it as JSON", f"{picture.slug}.json", data),
    )
    return join(
        element(
            "figure",
            element("button", image, type="button", class_="plate", aria_pressed="false", title="Enlarge or reduce"),
            element("figcaption", picture.caption, class_="caption"),
        ),
        element("div", disclosed, _remake(command), class_="tools"),
    )


def _drawing(picture: Picture, drawn: Drawn) -> Markup:
    """Return line art, which the page's script recolours on a dark page."""
    image = element("img", src=data_uri(drawn.svg, _SVG), alt=picture.caption, class_="drawing")
    if not drawn.small:
        return image
    small = element("source", srcset=data_uri(drawn.small, _SVG), media="(max-width: 48rem)", class_="drawing")
    return element("picture", small, image)


def _photograph(picture: Picture, drawn: Drawn) -> Markup:
    dark = data_uri(_compact(drawn.dark), "image/webp") if drawn.dark else None
    return element(
        "img", src=data_uri(_compact(drawn.png), "image/webp"), alt=picture.caption, class_="photograph", data_dark=dark
    )


def _compact(png: bytes) -> bytes:
    """Return a picture of photographs as WebP, a tenth of the size of its PNG."""
    content = BytesIO()
    with Image.open(BytesIO(png)) as image:
        image.convert("RGB").save(content, "WEBP", quality=_QUALITY)
    return content.getvalue()


def render_absent(item: Absent) -> Markup:
    """Say why an item is not there."""
    return element("p", with_code(item.reason), class_="absent")
