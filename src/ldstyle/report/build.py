"""From results folders to a report: its tables and pictures, their order, and its files.

A report is a folder: ``index.html``, which needs no other file, ``tables/SLUG.{md,tex,csv}`` and
``figures/SLUG.{png,svg,json}``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from pathlib import Path

from ldstyle.benchmark.results.data import DataAccess
from ldstyle.benchmark.results.reading import DamagedFileError
from ldstyle.benchmark.results.records import read_results
from ldstyle.benchmark.results.view import NO_ACCESS, Results
from ldstyle.files import replace_text
from ldstyle.messages import did_you_mean
from ldstyle.report.figures import FIGURES, make_figure
from ldstyle.report.html.browser import build_browser, join_browsers
from ldstyle.report.html.page import Drawn, render_page
from ldstyle.report.model import Absent, Item, Picture, Section, Table
from ldstyle.report.tables import SLOW_TABLES, attempt, make_tables
from ldstyle.report.tables.formats import write_table

PAGE, TABLES, PICTURES = "index.html", "tables", "figures"
LEAD = "method"
"""The picture that a page opens with."""

_LONGEST = 80
"""Characters of the longest name of a file, without its ending."""

_LAYOUT: Mapping[str, Sequence[str]] = {
    "Results": ("leaderboard", "summary-all", "differences", "split-*-all", "label-ap", "summary-test", "split-*"),
    "Certainty": (
        "differences-all",
        "twins-all",
        "additions-all",
        "differences-test",
        "twins-test",
        "additions-test",
        "oracle-gap",
        "calibration",
    ),
    "Attention": (
        "attention-parts",
        "strength",
        "localization",
        "learned-attention",
        "development",
        "localization-epochs",
        "strength-epochs",
        "attention",
    ),
    "Styles": ("class-samples", "style-statistics", "operators"),
    "Training and its cost": ("training-curves", "cost", "cost-accuracy", "complexity"),
    "Ablations and sensitivity": ("ablation*", "sensitivity"),
    "Setup": ("dataset", "selected*", "search-space"),
}
"""Sections of a report and their items, by slug; ``*`` matches anything."""


@dataclass(frozen=True)
class Report:
    """A report that was made.

    Attributes:
        page: The page; ``None`` if only some items were requested.
        files: All files written.
        absent: Items that could not be made.
        summaries: The table over all splits of each grid.
        damaged: Files and records that were left out because they could not be read.
    """

    page: Path | None
    files: tuple[Path, ...]
    absent: tuple[Absent, ...]
    summaries: tuple[Table, ...] = ()
    damaged: tuple[str, ...] = ()


def find_grids(folders: Sequence[Path], *, access: DataAccess = NO_ACCESS) -> list[Results]:
    """Read results folders; the cells of one preset in one folder are a grid.

    Raises:
        ValueError: A folder was named twice, or nothing in it can be read.
    """
    found: list[tuple[str, Path, Results]] = []
    resolved = [folder.resolve() for folder in folders]
    for folder, path in zip(folders, resolved, strict=True):
        if resolved.count(path) > 1:
            raise ValueError(f"Each results folder must be named once; got '{folder}' twice.")
        damaged: list[DamagedFileError] = []
        cells = read_results(folder, damaged=damaged)
        if damaged and not cells:
            raise ValueError(f"Nothing in '{folder}' can be read: {'; '.join(map(str, damaged))}.")
        presets = list(dict.fromkeys(cell.preset for cell in cells))
        for preset in presets:
            name = f"{path.name}, {preset}" if len(presets) > 1 else path.name
            of_preset = (cell for cell in cells if cell.preset == preset)
            found.append((name, path, Results(of_preset, folder=folder, access=access, damaged=damaged)))
    names = [name for name, _, _ in found]
    for name, path, grid in found:
        # Folders of one name are distinguished by their parents.
        grid.name = f"{name} in {path.parent}" if names.count(name) > 1 else name
    return [grid for _, _, grid in found]


def build_report(
    folders: Sequence[Path],
    out: Path,
    *,
    only: Sequence[str] = (),
    access: DataAccess = NO_ACCESS,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Make a report of results folders.

    Args:
        folders: Results folders of ``ldstyle bench``.
        out: Folder of the report.
        only: Slugs of items to make; by default all of them and the page.
        access: Data that may be read outside the folders.
        progress: Called with the name of each item before it is made.

    Returns:
        The files and the items that could not be made.

    Raises:
        ValueError: There is no item of a slug in ``only``.
        FileNotFoundError: A folder contains no results.
    """
    grids = find_grids(folders, access=access)
    several = len(grids) > 1
    made, known = collect_items(grids, only=only, progress=progress)
    for slug in only:
        if slug not in known:
            raise unknown_item(slug, known)
    drawn: dict[str, Drawn] = {}
    files = [path for _, item in made for path in _write(item, out, drawn)]
    absent = tuple(item for _, item in made if isinstance(item, Absent) and (only or not item.optional))
    if only:
        return Report(None, tuple(files), absent, damaged=list_damaged(grids, absent))
    made = [(grid, item) for grid, item in made if not isinstance(item, Absent) or item in absent]
    progress("images")
    browser = join_browsers(build_browser(grid, group=grid.name if several else "") for grid in grids)
    leads = {grid.name: item for grid, item in made if isinstance(item, Picture) and item.slug.endswith(LEAD)}
    page = render_page(
        _sections([(grid, item) for grid, item in made if item not in leads.values()], grids),
        title="Label-decoupled style augmentation: results",
        subtitle=", ".join(str(folder) for folder in folders),
        grids=grids,
        browser=browser,
        command=lambda slug: _command(folders, out, slug, access),
        damaged=list_damaged(grids, absent),
        pictures=drawn,
        leads=leads,
    )
    out.mkdir(parents=True, exist_ok=True)
    replace_text(out / PAGE, page)
    absent += (browser,) if isinstance(browser, Absent) else ()
    summaries = tuple(item for _, item in made if isinstance(item, Table) and item.slug.endswith("summary-all"))
    return Report(out / PAGE, (*files, out / PAGE), absent, summaries, list_damaged(grids, absent))


def unknown_item(slug: str, known: Sequence[str]) -> ValueError:
    """Return the error about an item that does not exist."""
    return ValueError(f"There is no item {slug!r}.{did_you_mean(slug, known)} Choose from: {', '.join(known)}.")


def collect_items(
    grids: Sequence[Results], *, only: Sequence[str], progress: Callable[[str], None]
) -> tuple[list[tuple[Results, Item]], list[str]]:
    """Make items of grids without writing them.

    Args:
        grids: The grids.
        only: Slugs of the items to make; empty for all of them.
        progress: Called with the name of each item before it is made.

    Returns:
        The items, each with its grid, and the slugs of all items that there are.
    """
    made: list[tuple[Results, Item]] = []
    known: list[str] = []
    for grid, prefix in zip(grids, _prefixes(grids), strict=True):
        for slug, item in _items(grid, prefix=prefix, only=only, progress=progress):
            known.append(slug)
            if item is not None:
                made.append((grid, item))
    return made, known


def list_damaged(grids: Sequence[Results], absent: Sequence[Absent]) -> tuple[str, ...]:
    """Return the files and items that could not be read, each once."""
    files = [str(error) for grid in grids for error in grid.damaged]
    return tuple(dict.fromkeys([*files, *(f"{item.slug}: {item.reason}" for item in absent if item.damaged)]))


def _items(
    grid: Results, *, prefix: str, only: Sequence[str], progress: Callable[[str], None]
) -> Iterator[tuple[str, Item | None]]:
    """Make the items of a grid; of those that were not requested, only the slug."""

    def wanted(slug: str) -> bool:
        return not only or prefix + _file_name(slug) in only

    def named(items: Sequence[Item]) -> Iterator[tuple[str, Item | None]]:
        for item in items:
            slug = prefix + _file_name(item.slug)
            yield slug, replace(item, slug=slug) if wanted(item.slug) else None

    progress(f"{grid.name}: tables")
    yield from named(make_tables(grid))
    slow: dict[str, Callable[[], Item]] = {slug: partial(make, grid) for slug, make in SLOW_TABLES.items()}
    slow |= {slug: partial(make_figure, slug, grid) for slug in FIGURES}
    for slug, make in slow.items():
        if wanted(slug):
            progress(f"{grid.name}: {slug}")
            yield from named(attempt(slug, make))
        else:
            yield prefix + slug, None


def _write(item: Item, out: Path, drawn: dict[str, Drawn]) -> list[Path]:
    match item:
        case Table():
            return write_table(item, out / TABLES)
        case Picture():
            from ldstyle.report.figures.style import dark_png, save_picture, small_png, small_svg

            paths = save_picture(item, out / PICTURES)
            png, svg = paths["png"].read_bytes(), paths["svg"].read_text(encoding="utf-8")
            if not item.photographic:
                drawn[item.slug] = Drawn(png, svg, small=small_svg(item))
            elif not item.stacks:
                drawn[item.slug] = Drawn(png, svg, dark=dark_png(item))
            else:
                small, small_dark = small_png(item), dark_png(item, small=True)
                drawn[item.slug] = Drawn(png, svg, dark=dark_png(item), small_png=small, small_dark=small_dark)
            return list(paths.values())
        case Absent():
            return []


def _sections(made: Sequence[tuple[Results, Item]], grids: Sequence[Results]) -> list[Section]:
    sections = []
    for grid, prefix in zip(grids, _prefixes(grids), strict=True):
        left = {item.slug.removeprefix(prefix): item for of, item in made if of is grid}
        for title, patterns in {**_LAYOUT, "Further": ("*",)}.items():
            slugs = [slug for pattern in patterns for slug in left if fnmatchcase(slug, pattern)]
            items = [left.pop(slug) for slug in dict.fromkeys(slugs)]
            if items:
                sections.append(Section(f"{grid.name}: {title}" if prefix else title, items, grid.name))
    return sections


def _command(folders: Sequence[Path], out: Path, slug: str, access: DataAccess) -> str:
    named = {"--data": access.root, "--mapping": access.mapping}
    options = [word for name, path in named.items() if path is not None for word in (name, str(path))]
    options += ["--trust-record"] * access.trust
    return shlex.join(["ldstyle", "report", *map(str, folders), "--out", str(out), *options, "--only", slug])


def _prefixes(grids: Sequence[Results]) -> list[str]:
    """Return how the slugs of each grid begin: nothing for a single one, else its name, made unique by its number."""
    if len(grids) == 1:
        return [""]
    names = [re.sub(r"[^A-Za-z0-9]+", "-", grid.name).strip("-").lower() for grid in grids]
    alone = [name if name and names.count(name) == 1 else "-".join(filter(None, (name, "grid", str(number))))
             for number, name in enumerate(names, start=1)]  # fmt: skip
    return [f"{name}-" for name in alone]


def _file_name(slug: str) -> str:
    """Return a slug that may name a file: it contains names of splits, and a record may contain any."""
    if len(slug) <= _LONGEST and re.fullmatch(r"[A-Za-z0-9][\w.=~+-]*", slug, re.ASCII):
        return slug
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", slug).strip("-.")
    return f"{plain[: _LONGEST - 9]}-{sha256(slug.encode(errors='replace')).hexdigest()[:8]}"
