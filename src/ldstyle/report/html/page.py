"""One page with everything: a file that needs no server, no network and no other file.

The templates are in ``templates/``, with the style sheet and the script that are inlined. Names of labels, domains and
methods come from users' files, so everything is escaped except the output of the filters below.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources
from importlib.metadata import version
from io import BytesIO
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from PIL import Image

from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.status import duration
from ldstyle.benchmark.results.view import Results
from ldstyle.benchmark.studies import is_main
from ldstyle.report.figures.style import DARK
from ldstyle.report.html.browser import SLUG as IMAGES
from ldstyle.report.html.browser import BrowserData
from ldstyle.report.html.summary import summarize
from ldstyle.report.model import Absent, Number, Picture, Section, Table, Value, Word
from ldstyle.report.tables.formats import FORMATS

_FORMATS = {"csv": ("CSV", "text/csv"), "md": ("Markdown", "text/markdown"), "tex": ("LaTeX", "application/x-tex")}
_PREVIEW = 1500
_QUALITY = 88  # of photographs; letters on them stay sharp


class Drawn(NamedTuple):
    """The files of a picture.

    Attributes:
        png: On white.
        svg: On white.
        small: SVG for small screens; the other one where it is empty.
        dark: PNG for dark pages, of photographic pictures only.
        small_png: PNG for small screens, of photographic pictures that have one.
        small_dark: The same for dark pages.
    """

    png: bytes
    svg: str
    small: str = ""
    dark: bytes = b""
    small_png: bytes = b""
    small_dark: bytes = b""


def render_page(
    sections: Sequence[Section],
    *,
    title: str,
    subtitle: str = "",
    grids: Sequence[Results],
    browser: BrowserData | Absent,
    command: Callable[[str], str],
    pictures: Mapping[str, Drawn],
    damaged: Sequence[str] = (),
    leads: Mapping[str, Picture] | None = None,
) -> str:
    """Render a report as one HTML file; the same input gives the same bytes.

    Args:
        sections: Sections of the report, in order; slugs are unique among all of them.
        title: Heading.
        subtitle: A line below it, e.g. the results folders.
        grids: The grids, each with a name where there are several.
        browser: Data of the image browser, whose ``group`` is the name of a grid; or the reason why there are none.
        command: Returns the command that makes the item of a slug again.
        pictures: PNG and SVG of each picture of the sections, by slug.
        damaged: Files that were left out because they could not be read.
        leads: The picture that the summary of a grid opens with, by the grid's name.

    Raises:
        ValueError: A slug occurs twice, or a picture was not drawn.
    """
    openings = leads or {}
    _check([Section("", list(openings.values())), *sections], pictures)
    items = [item for section in sections for item in section.items]
    absent = [(_anchor(item.slug), item) for item in items if isinstance(item, Absent)]
    absent += [(IMAGES, browser)] if isinstance(browser, Absent) else []
    summaries = [(grid.name, found) for grid in grids if (found := summarize(grid)) is not None]
    several = len(summaries) > 1
    style, script = _asset("page.css"), _asset("page.js")
    return _environment().get_template("page.html.j2").render(
        title=title,
        subtitle=subtitle,
        policy=_policy(style, script),
        style=style,
        script=script,
        sections=sections,
        summaries=[(name if several else "", summary, openings.get(name)) for name, summary in summaries],
        damaged=damaged,
        absent=absent,
        command=command,
        pictures=pictures,
        browser=browser,
        runs=[_Run(grid.name, cell, grid.titles[cell.method], len(grids) > 1) for grid in grids for cell in grid.cells],
        filters=_filters(grids),
        version=version("ldstyle"),
        data=_script_json({"browser": _browser_data(browser, several=len(grids) > 1), "dark": DARK}),
    )  # fmt: skip


@dataclass(frozen=True)
class _Run:
    """A row of the table of all runs."""

    grid: str
    cell: CellResult
    title: str
    several: bool

    @property
    def key(self) -> str:
        return _run_key(self.grid, self.cell.cell, several=self.several)

    @property
    def split(self) -> str:
        return _split(self.cell.split, self.cell.target)

    @property
    def names(self) -> list[Value]:
        return [Word(self.title), Word(self.cell.split), Word(self.cell.target)]

    @property
    def seed(self) -> Value:
        return Number(number=self.cell.seed, digits=0)

    @property
    def status(self) -> Value:
        return Word(self.cell.status)

    @property
    def numbers(self) -> list[Value]:
        cell = self.cell
        scores = (cell.score("map", "all"), cell.score("map", "test"), cell.validation_map)
        spent = Value() if cell.wall_seconds is None else Word(duration(cell.wall_seconds), number=cell.wall_seconds)
        percent = [Number(number=None if score is None else 100 * score, digits=1) for score in scores]
        return [*percent, Number(number=cell.epochs, digits=0), spent]


def _run_key(grid: str, cell: str, *, several: bool) -> str:
    """Return the name of a run on a page: grids may have cells of one name."""
    return f"{grid}/{cell}" if several else cell


def _split(name: str, target: str) -> str:
    return f"{name}, {target}"


def _filters(grids: Sequence[Results]) -> dict[str, dict[str, str]]:
    """Return the choices of each filter: its values and their texts."""
    # Points of sweeps are too many for buttons; typing finds them.
    methods = {m: title for grid in grids for m, title in grid.titles.items() if is_main(m)}
    # Grids may have splits of one name with other targets.
    targets = list(dict.fromkeys(split for grid in grids for split in grid.targets.items()))
    names = [name for name, _ in targets]
    splits = {_split(*split): _split(*split) for split in sorted(targets, key=lambda split: names.index(split[0]))}
    seeds = {str(seed): str(seed) for seed in sorted({seed for grid in grids for seed in grid.seeds})}
    return {"method": methods, "split": splits, "seed": seeds, "grid": {grid.name: grid.name for grid in grids}}


def _check(sections: Sequence[Section], pictures: Mapping[str, Drawn]) -> None:
    items = [item for section in sections for item in section.items]
    slugs = [item.slug for item in items]
    twice = [slug for slug in slugs if slugs.count(slug) > 1]
    if twice:
        raise ValueError(f"Slugs must be unique among the items of a page; got {twice[0]!r} twice.")
    missing = [item.slug for item in items if isinstance(item, Picture) and item.slug not in pictures]
    if missing:
        raise ValueError(f"`pictures` must contain every picture of the sections; {missing[0]!r} is missing.")


def _browser_data(browser: BrowserData | Absent, *, several: bool) -> dict[str, Any] | None:
    """Return the data of the browser for the page's script; each view names its run as the run table does."""
    if isinstance(browser, Absent):
        return None
    described = browser.describe()
    for target in described["targets"]:
        for view in target["views"]:
            view["run"] = _run_key(target["group"], view["cell"], several=several)
    return described


# ---- The templates' environment


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ldstyle.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests |= {kind.__name__.lower(): _is(kind) for kind in (Table, Picture, Absent)}
    environment.filters |= {
        "anchor": _anchor,
        "attributes": _attributes,
        "code": _with_code,
        "downloads": _downloads,
        "drawing": lambda svg: _data_uri(svg, "image/svg+xml"),
        "json_address": lambda data: _data_uri(_plain_json(data, indent=1), "application/json;charset=utf-8"),
        "listed": lambda names: "\t".join(dict.fromkeys(name for name in names if name)) or None,
        "photograph": _photograph,
        "preview": _preview,
    }
    return environment


def _is(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kind)


def _asset(name: str) -> Markup:
    return Markup((resources.files("ldstyle.report.html") / "templates" / name).read_text(encoding="utf-8"))


def _policy(style: str, script: str) -> str:
    """Allow this style, this script and images within the page, and nothing else."""
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _anchor(slug: str) -> str:
    return f"item-{re.sub(r'[^A-Za-z0-9_.-]', '-', slug)}"


def _attributes(values: Mapping[str, object]) -> Markup:
    """Return attributes of an element; those that are ``None`` or undefined are left out."""
    known = {name: value for name, value in values.items() if isinstance(value, str | int | float)}
    return Markup("").join(Markup(' {}="{}"').format(name, value) for name, value in known.items())


def _with_code(text: str) -> Markup:
    """Return text in which code is marked by backticks; a backtick without another stays."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        parts[-2:] = ["`".join(parts[-2:])]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if n % 2 else escape(part) for n, part in enumerate(parts)
    )


def _downloads(table: Table) -> list[tuple[str, str, str]]:
    """Return name, file and address of a table in every format."""
    kinds = {ending: (*_FORMATS[ending], write(table)) for ending, write in FORMATS.items()}
    return [
        (name, f"{table.slug}.{ending}", _data_uri(text, f"{kind};charset=utf-8"))
        for ending, (name, kind, text) in kinds.items()
    ]


def _data_uri(content: bytes | str, kind: str) -> str:
    """Return an address that contains the content; text becomes UTF-8."""
    raw = content.encode() if isinstance(content, str) else content
    return f"data:{kind};base64,{b64encode(raw).decode()}"


def _photograph(png: bytes) -> str | None:
    """Return the address of a photographic picture as WebP, a tenth of the size of its PNG."""
    if not png:
        return None
    content = BytesIO()
    with Image.open(BytesIO(png)) as image:
        image.convert("RGB").save(content, "WEBP", quality=_QUALITY)
    return _data_uri(content.getvalue(), "image/webp")


def _preview(data: object) -> str:
    text = _plain_json(data, indent=1)
    return text if len(text) <= _PREVIEW else f"{text[:_PREVIEW]}\n…"


def _plain_json(value: object, *, indent: int | None = None) -> str:
    """Return a value as JSON; numbers that JSON does not have, such as NaN, become ``null``."""
    separators = (",", ":") if indent is None else None
    return json.dumps(_finite(value), indent=indent, separators=separators, ensure_ascii=False, allow_nan=False)


def _script_json(value: object) -> Markup:
    """Return a value as JSON for a script element: nothing in it can end the element."""
    text = _plain_json(value)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(inner) for inner in value]
    return value
