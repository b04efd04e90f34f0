"""One page with everything: a file that needs no server, no network and nothing beside it."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from importlib import resources
from importlib.metadata import version
from string import Template
from typing import TypeAlias

from ldstyle.benchmark.results.records import CellResult
from ldstyle.report.figures.style import DARK
from ldstyle.report.html.browser import SLUG as IMAGES
from ldstyle.report.html.browser import TITLE as IMAGES_TITLE
from ldstyle.report.html.browser import BrowserData
from ldstyle.report.html.images import browser_data, render_browser
from ldstyle.report.html.items import Drawn, Formats, Names, render_absent, render_picture, render_table
from ldstyle.report.html.markup import Markup, element, join, script_json, with_code
from ldstyle.report.html.runs import render_runs
from ldstyle.report.html.summary import Summary, summarize
from ldstyle.report.model import Absent, Picture, Section, Table

_Part: TypeAlias = tuple[str, str, Markup, list[tuple[str, str]]]
"""Identifier, heading and content of a part of the page, and the identifiers and titles of its items."""


def render_page(
    sections: Sequence[Section],
    *,
    title: str,
    subtitle: str = "",
    runs: Mapping[str, Sequence[CellResult]],
    browser: BrowserData | Absent,
    command: Callable[[str], str],
    pictures: Mapping[str, Drawn],
    formats: Formats | None = None,
    damaged: Sequence[str] = (),
) -> str:
    """Render a report as one HTML file; the same input gives the same bytes.

    Args:
        sections: What the report is made of, in order; slugs are unique among all of them.
        title: Heading.
        subtitle: A line below it, e.g. where the results are from.
        runs: All cells by the name of their grid. The cells of one grid have one preset, and none occurs twice.
        browser: Data of the image browser, whose ``group`` is a name in ``runs``; or why there are none.
        command: Returns the command that makes the item of a slug again.
        pictures: PNG and SVG of each picture of the sections, by slug.
        formats: How to write tables for download, by file ending: ``csv``, ``md``, ``tex``.
        damaged: What was left out because it could not be read.

    Raises:
        ValueError: A slug occurs twice, or a picture was not drawn.
    """
    _check(sections, pictures)
    names = Names.of(runs)
    parts = [
        ("summary", "Summary", _summary(sections, runs, browser, damaged), []),
        *(_section(n, section, names, command, pictures, formats or {}) for n, section in enumerate(sections, start=1)),
        (IMAGES, IMAGES_TITLE, render_browser(browser), []),
        ("runs", "Runs", render_runs(runs), []),
    ]
    style, script = _asset("page.css"), _asset("page.js")
    return Template(_asset("page.html")).substitute(
        policy=_policy(style, script),
        title=join(title),
        subtitle=join(subtitle),
        style=style,
        script=script,
        contents=_contents(parts),
        body=join(*(element("section", element("h2", heading), body, id=id_) for id_, heading, body, _ in parts)),
        footer=join(f"Made by ldstyle {version('ldstyle')} from {sum(map(len, runs.values()))} runs."),
        data=script_json({"browser": browser_data(browser, several=len(runs) > 1), "dark": DARK}),
    )


def _asset(name: str) -> str:
    return (resources.files("ldstyle.report") / "assets" / name).read_text(encoding="utf-8")


def _check(sections: Sequence[Section], pictures: Mapping[str, Drawn]) -> None:
    slugs = [item.slug for section in sections for item in section.items]
    twice = [slug for slug in slugs if slugs.count(slug) > 1]
    if twice:
        raise ValueError(f"Slugs must be unique among the items of a page; got {twice[0]!r} twice.")
    drawn = [item.slug for section in sections for item in section.items if isinstance(item, Picture)]
    missing = [slug for slug in drawn if slug not in pictures]
    if missing:
        raise ValueError(f"`pictures` must hold every picture of the sections; {missing[0]!r} is not there.")


def _policy(style: str, script: str) -> str:
    """Allow this style, this script and pictures within the page, and nothing else."""
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _contents(parts: Sequence[_Part]) -> Markup:
    entries = []
    for id_, heading, _, items in parts:
        inner = [element("li", element("a", title, href=f"#{slug}")) for slug, title in items]
        below = [element("ol", *inner)] if inner else []
        entries.append(element("li", element("a", heading, href=f"#{id_}"), *below, class_="section"))
    return element("ol", *entries)


def _section(
    number: int,
    section: Section,
    names: Names,
    command: Callable[[str], str],
    pictures: Mapping[str, Drawn],
    formats: Formats,
) -> _Part:
    body = []
    for item in section.items:
        match item:
            case Table():
                content = render_table(item, names, command(item.slug), formats)
            case Picture():
                content = render_picture(item, pictures[item.slug], command(item.slug))
            case Absent():
                content = render_absent(item)
        heading = element("h3", item.title)
        split = names.in_title(item.title)
        body.append(element("article", heading, content, class_="item", id=_id(item.slug), data_splits=split))
    return f"part-{number}", section.title, join(*body), [(_id(item.slug), item.title) for item in section.items]


def _id(slug: str) -> str:
    return f"item-{re.sub(r'[^A-Za-z0-9_.-]', '-', slug)}"


def _summary(
    sections: Sequence[Section],
    runs: Mapping[str, Sequence[CellResult]],
    browser: BrowserData | Absent,
    damaged: Sequence[str],
) -> Markup:
    summaries = {name: found for name, cells in runs.items() if (found := summarize(cells)) is not None}
    grids = [_grid(name if len(summaries) > 1 else "", summary) for name, summary in summaries.items()]
    absent = [(_id(item.slug), item) for section in sections for item in section.items if isinstance(item, Absent)]
    absent += [(IMAGES, browser)] if isinstance(browser, Absent) else []
    entries = [
        element("li", element("a", item.title, href=f"#{place}"), ": ", with_code(item.reason))
        for place, item in absent
    ]
    heading = f"{len(absent)} part{'' if len(absent) == 1 else 's'} of this report could not be made"
    left = "Left out because it could not be read"
    bad = _more(left, [element("li", line) for line in damaged]) if damaged else Markup()
    return join(*grids, bad, _more(heading, entries) if absent else Markup())


def _grid(name: str, summary: Summary) -> Markup:
    figures = [
        element("div", element("dt", figure.meaning), element("dd", f"{figure.value} ", element("small", figure.unit)))
        for figure in summary.figures
    ]
    remarks = element("ul", *(element("li", remark) for remark in summary.remarks), class_="remarks")
    unfinished = [element("li", line) for line in summary.unfinished]
    return join(
        element("h3", name, class_="grid-name") if name else Markup(),
        element("p", summary.headline, class_="headline"),
        element("dl", *figures, class_="numbers"),
        remarks if summary.remarks else Markup(),
        _more("Runs without a result", unfinished) if unfinished else Markup(),
    )


def _more(heading: str, entries: Sequence[Markup]) -> Markup:
    return element("details", element("summary", heading), element("ul", *entries, class_="remarks"), class_="more")
