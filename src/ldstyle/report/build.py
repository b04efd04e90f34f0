"""From results folders to a report: which tables and pictures it has, in which order, and its files.

A report is a folder: ``index.html``, which needs nothing beside it, ``tables/SLUG.{md,tex,csv}`` and
``figures/SLUG.{png,svg,json}``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from pathlib import Path

from ldstyle.benchmark.results.reading import DamagedFileError
from ldstyle.benchmark.results.records import CellResult, read_results
from ldstyle.files import replace_text
from ldstyle.messages import did_you_mean
from ldstyle.report.advice import with_commands
from ldstyle.report.figures import FIGURES, make_figure
from ldstyle.report.figures.runs import Runs
from ldstyle.report.formats import FORMATS, write_table
from ldstyle.report.html.browser import build_browser, join_browsers
from ldstyle.report.html.items import Drawn
from ldstyle.report.html.page import render_page
from ldstyle.report.model import Absent, Item, Picture, Section, Table
from ldstyle.report.sources import DataAccess
from ldstyle.report.tables import (
    ablation_tables,
    attempt,
    complexity_table,
    dataset_table,
    make_tables,
    search_space_table,
    selected_tables,
)

PAGE = "index.html"
_NOTHING = DataAccess()
_LONGEST = 80
"""Characters of the longest name of a file, but for its ending."""
TABLES, PICTURES = "tables", "figures"

_LAYOUT: Mapping[str, Sequence[str]] = {
    "Results": ("summary-all", "differences", "split-*-all", "label-ap", "summary-test", "split-*"),
    "How sure": ("differences-all", "twins-all", "differences-test", "twins-test", "oracle-gap", "calibration"),
    "Attention": (
        "attention-parts",
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
    "Set-up": ("dataset", "selected*", "search-space"),
}
"""Sections of a report and the items in them, by slug; ``*`` stands for anything."""


@dataclass(frozen=True)
class Grid:
    """Cells that are compared with each other.

    Attributes:
        name: What to call them.
        folder: Their results folder.
        cells: The cells, all of one preset.
        damaged: Files of the folder that could not be read; more are added as they are met.
    """

    name: str
    folder: Path
    cells: tuple[CellResult, ...]
    damaged: list[DamagedFileError] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """What was made.

    Attributes:
        page: The page; ``None`` if only some items were asked for.
        files: All files written.
        absent: What could not be made.
        summaries: The table over all splits of each grid.
        damaged: What was left out because it could not be read.
    """

    page: Path | None
    files: tuple[Path, ...]
    absent: tuple[Absent, ...]
    summaries: tuple[Table, ...] = ()
    damaged: tuple[str, ...] = ()


def find_grids(folders: Sequence[Path]) -> list[Grid]:
    """Read results folders; the cells of one preset in one folder are a grid.

    Raises:
        ValueError: A folder was named twice, or nothing of it can be read.
    """
    grids: list[Grid] = []
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
            grids.append(Grid(name, folder, tuple(cell for cell in cells if cell.preset == preset), damaged))
    names = [grid.name for grid in grids]
    # Folders of one name in different places are told apart by where they are.
    return [
        replace(g, name=f"{g.name} in {g.folder.resolve().parent}") if names.count(g.name) > 1 else g for g in grids
    ]


def build_report(
    folders: Sequence[Path],
    out: Path,
    *,
    only: Sequence[str] = (),
    access: DataAccess = _NOTHING,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Make a report of results folders.

    Args:
        folders: Results folders of ``ldstyle bench``.
        out: Folder of the report.
        only: Slugs of items to make; by default all of them and the page.
        access: What may be read outside of the folders: the data of the runs.
        progress: Told what is being made.

    Returns:
        What was made.

    Raises:
        ValueError: There is no item of a slug in ``only``.
        FileNotFoundError: A folder holds no results.
    """
    grids = find_grids(folders)
    grids = [replace(g, cells=tuple(access.apply(cell, g.folder) for cell in g.cells)) for g in grids]
    made: list[tuple[Grid, Item]] = []
    files: list[Path] = []
    drawn: dict[str, Drawn] = {}
    known: list[str] = []
    for grid in grids:
        prefix = f"{_slug(grid.name)}-" if len(grids) > 1 else ""
        for slug, item in _items(grid, prefix=prefix, only=only, progress=progress):
            known.append(slug)
            if item is None:
                continue
            made.append((grid, item))
            files += _write(item, out, drawn)
    _check_only(only, known)
    absent = tuple(item for _, item in made if isinstance(item, Absent) and (only or not item.optional))
    if only:
        return Report(None, tuple(files), absent, damaged=_damaged(grids, absent))
    made = [(grid, item) for grid, item in made if not isinstance(item, Absent) or item in absent]
    progress("images")
    browser = join_browsers(
        build_browser(grid.folder, grid.cells, group=grid.name if len(grids) > 1 else "", damaged=grid.damaged)
        for grid in grids
    )
    page = render_page(
        _sections(made, grids),
        title="Label-decoupled style augmentation: results",
        subtitle=", ".join(str(folder) for folder in folders),
        runs={grid.name if len(grids) > 1 else "": grid.cells for grid in grids},
        browser=browser,
        command=lambda slug: _command(folders, out, slug, access),
        damaged=_damaged(grids, absent),
        pictures=drawn,
        formats=FORMATS,
    )
    out.mkdir(parents=True, exist_ok=True)
    replace_text(out / PAGE, page)
    absent += (browser,) if isinstance(browser, Absent) else ()
    summaries = tuple(item for _, item in made if isinstance(item, Table) and item.slug.endswith("summary-all"))
    return Report(out / PAGE, (*files, out / PAGE), absent, summaries, _damaged(grids, absent))


def _damaged(grids: Sequence[Grid], absent: Sequence[Absent]) -> tuple[str, ...]:
    """Return what was left out because it could not be read, each once."""
    files = [str(error) for grid in grids for error in grid.damaged]
    return tuple(dict.fromkeys([*files, *(f"{item.slug}: {item.reason}" for item in absent if item.damaged)]))


def _items(
    grid: Grid, *, prefix: str, only: Sequence[str], progress: Callable[[str], None]
) -> Iterator[tuple[str, Item | None]]:
    """Make the items of a grid; those that were not asked for are named only."""

    def wanted(slug: str) -> bool:
        return not only or prefix + _file_name(slug) in only

    def named(items: Sequence[Item]) -> Iterator[tuple[str, Item | None]]:
        for item in items:
            slug = prefix + _file_name(item.slug)
            advised = with_commands(item, grid.folder, grid.cells) if isinstance(item, Absent) else item
            yield slug, replace(advised, slug=slug) if wanted(item.slug) else None

    cells, runs = grid.cells, Runs(grid.folder, grid.cells, damaged=grid.damaged)
    progress(f"{grid.name}: tables")
    yield from named([*make_tables(cells), *attempt("ablation", lambda: ablation_tables(cells))])
    yield from named([*attempt("selected", lambda: selected_tables(cells)), search_space_table()])
    slow: dict[str, Callable[[], Item]] = {
        "dataset": lambda: dataset_table(cells),
        "complexity": lambda: complexity_table(cells, folder=grid.folder),
        **{slug: partial(make_figure, slug, runs) for slug in FIGURES},
    }
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
            from ldstyle.report.figures.style import dark_png, save_picture, small_svg

            paths = save_picture(item, out / PICTURES)
            png, svg = paths["png"].read_bytes(), paths["svg"].read_text(encoding="utf-8")
            variants = {"dark": dark_png(item)} if item.photographic else {"small": small_svg(item)}
            drawn[item.slug] = Drawn(png, svg, **variants)
            return list(paths.values())
        case Absent():
            return []


def _sections(made: Sequence[tuple[Grid, Item]], grids: Sequence[Grid]) -> list[Section]:
    sections = []
    for grid in grids:
        prefix = f"{_slug(grid.name)}-" if len(grids) > 1 else ""
        left = {item.slug.removeprefix(prefix): item for of, item in made if of is grid}
        for title, patterns in _LAYOUT.items():
            slugs = [slug for pattern in patterns for slug in left if _matches(slug, pattern)]
            items = [left.pop(slug) for slug in dict.fromkeys(slugs)]
            if items:
                sections.append(Section(f"{grid.name}: {title}" if prefix else title, items))
        if left:
            sections.append(Section(f"{grid.name}: Further" if prefix else "Further", list(left.values())))
    return sections


def _matches(slug: str, pattern: str) -> bool:
    return fnmatchcase(slug, pattern)


def _check_only(only: Sequence[str], known: Sequence[str]) -> None:
    for slug in only:
        if slug not in known:
            raise ValueError(f"There is no item {slug!r}.{did_you_mean(slug, known)} Choose from: {', '.join(known)}.")


def _command(folders: Sequence[Path], out: Path, slug: str, access: DataAccess) -> str:
    named = {"--data": access.root, "--mapping": access.mapping}
    options = [word for name, path in named.items() if path is not None for word in (name, str(path))]
    options += ["--trust-record"] * access.trust
    return shlex.join(["ldstyle", "report", *map(str, folders), "--out", str(out), *options, "--only", slug])


def _file_name(slug: str) -> str:
    """Return a slug that may name a file: names of splits are part of it, and a record may hold any."""
    if len(slug) <= _LONGEST and re.fullmatch(r"[A-Za-z0-9][\w.=~+-]*", slug, re.ASCII):
        return slug
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", slug).strip("-.")
    return f"{plain[: _LONGEST - 9]}-{sha256(slug.encode(errors='replace')).hexdigest()[:8]}"


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()
