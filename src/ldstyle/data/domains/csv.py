"""Reader of custom data sets: a CSV with ``path``, ``domain`` and one column per label, blank where unknown."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np

from ldstyle.data.domains.archives import find_images
from ldstyle.data.domains.csv_text import Sheet, drop_duplicates, parse_labels, read_sheet
from ldstyle.data.domains.scene_table import Report, SceneTable, fail
from ldstyle.data.domains.vocabulary import LabelMap, load_label_map, merge_labels
from ldstyle.messages import did_you_mean, first_few

DESCRIPTIVE = ("path", "domain", "mask", "scene", "gsd")
"""Columns that are no labels: the image, its domain, its mask, its split group, and metres per pixel."""

MASK_BITS = 8


@dataclass(frozen=True)
class LabelColumns:
    """Which columns of custom tables are labels; by default all that are not descriptive.

    Attributes:
        labels: The label columns; all others are ignored. Empty for the default.
        ignore: Columns that are no labels.
    """

    labels: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        both = [name for name in self.labels if name in self.ignore]
        descriptive = [name for name in (*self.labels, *self.ignore) if name in DESCRIPTIVE]
        if both or descriptive:
            raise ValueError(
                f"`labels` and `ignore` must be different columns, none of {list(DESCRIPTIVE)}; got "
                f"{first_few(both or descriptive)}."
            )

    def choose(self, header: Sequence[str]) -> tuple[str, ...]:
        """Return the label columns of a table, in the order of its header."""
        candidates = (name for name in header if name not in DESCRIPTIVE and name not in self.ignore)
        return tuple(name for name in candidates if not self.labels or name in self.labels)

    def require(self, headers: Iterable[Sequence[str]]) -> None:
        """Raise if a label is in none of the tables."""
        found = dict.fromkeys(name for header in headers for name in header)
        for name in self.labels:
            if name not in found:
                raise ValueError(
                    f"`labels` must name columns of the tables; {name!r} is none.{did_you_mean(name, found)} They have "
                    f"{list(found)}."
                )


ALL_LABELS = LabelColumns()


@dataclass(frozen=True)
class OwnTable:
    """A custom table as read from its file, before its labels are mapped to a vocabulary.

    Attributes:
        sheet: The text; its ``path`` and ``mask`` cells are POSIX paths that stay below the folder of the file.
        domains: Domain of each row; the folder's name if there is no ``domain`` column.
        columns: The label columns, without those that are ignored.
    """

    sheet: Sheet
    domains: tuple[str, ...]
    columns: tuple[str, ...]


def read_table(
    csv_path: Path,
    *,
    mapping: Path | LabelMap | None = None,
    domains: Collection[str] | None = None,
    columns: LabelColumns = ALL_LABELS,
    require_images: bool = True,
    report: Report = fail,
) -> tuple[SceneTable, ...]:
    """Read a custom table.

    Args:
        csv_path: The file. Columns: ``path``, relative to the file's folder; ``domain``, by default the folder's name;
            optionally ``mask``, an image whose bits are the label columns in their order, ``scene``, a group that no
            split cuts, and ``gsd``, metres per pixel of the file, blank where unknown; and one column per label with 1,
            0, or blank where unknown.
        mapping: Label map, or its YAML file. By default the vocabulary is the label columns.
        domains: Domains to read, by default all.
        columns: Which columns are labels.
        require_images: Whether a row without its files is a problem.
        report: What to do about repeated rows and missing files.

    Returns:
        One table per domain, in order of first appearance; rows in the order of the file.
    """
    own = open_table(csv_path, columns=columns, report=report)
    label_map = load_label_map(mapping) if isinstance(mapping, Path) else mapping
    wanted = [name for name in dict.fromkeys(own.domains) if domains is None or name in domains]
    return tuple(
        _read_domain(
            own,
            domain,
            label_map=label_map or LabelMap(own.columns),
            require_images=require_images,
            report=report,
        )
        for domain in wanted
    )


def open_table(csv_path: Path, *, columns: LabelColumns = ALL_LABELS, report: Report = fail) -> OwnTable:
    """Read the text of a custom table and check its columns, paths and repeated rows; no image is looked for."""
    if not csv_path.is_file():
        raise FileNotFoundError(f"There is no table '{csv_path}'. See `ldstyle data --help`.")
    sheet = read_sheet(csv_path)
    if "path" not in sheet.header:
        hint = did_you_mean("path", sheet.header)
        raise ValueError(f"A custom table needs a column `path`; '{csv_path}' has {list(sheet.header)}.{hint}")
    chosen = columns.choose(sheet.header)
    if not chosen and not columns.labels:
        raise ValueError(f"A custom table needs at least one label column; '{csv_path}' has {list(sheet.header)}.")
    sheet = _inside_folder(sheet)
    sheet = drop_duplicates(sheet, "path", sheet.column("path"), report=report)
    if "domain" not in sheet.header:
        return OwnTable(sheet, (csv_path.absolute().parent.name,) * len(sheet.rows), chosen)
    unnamed = [str(line) for line, name in zip(sheet.lines, sheet.column("domain"), strict=True) if not name]
    if unnamed:
        raise ValueError(
            f"Every row must name its domain; {len(unnamed)} lines of '{csv_path}' do not: {first_few(unnamed)}."
        )
    refuse_twins(sheet.column("domain"))
    return OwnTable(sheet, sheet.column("domain"), chosen)


def refuse_twins(domains: Iterable[str]) -> None:
    """Raise if the names of two domains differ in case only; they would count as two, and share files on some disks."""
    spelled: dict[str, str] = {}
    for name in domains:
        other = spelled.setdefault(name.casefold(), name)
        if other != name:
            raise ValueError(f"Domains must differ in more than case; got {other!r} and {name!r}. Spell them alike.")


def unlisted_images(csv_path: Path) -> list[str]:
    """Return the images of a table's folder that the table does not list; none if it has a ``domain`` column.

    A table with that column need not have its folder to itself.
    """
    sheet = open_table(csv_path, report=lambda problem: None).sheet
    if "domain" in sheet.header:
        return []
    listed = {path for name in ("path", "mask") if name in sheet.header for path in sheet.column(name)}
    paths = (path.relative_to(csv_path.parent).as_posix() for path in find_images(csv_path.parent))
    return [path for path in paths if path not in listed]


def _inside_folder(sheet: Sheet) -> Sheet:
    """Bring the paths of a sheet to one spelling; a path that leaves the table's folder is an error."""
    rows = [list(row) for row in sheet.rows]
    bad = []
    for column in ("path", "mask"):
        if column not in sheet.header:
            continue
        position = sheet.header.index(column)
        for row, line in zip(rows, sheet.lines, strict=True):
            cell = row[position]
            row[position] = path = os.path.normpath(cell.replace("\\", "/")) if cell else ""
            if (
                PureWindowsPath(path).anchor
                or ".." in PurePosixPath(path).parts
                or (column == "path" and path in ("", "."))
            ):
                bad.append(f"{cell} (line {line})")
    if bad:
        raise ValueError(
            f"Paths must name files below the folder of their table; {len(bad)} of '{sheet.path}' do not: "
            f"{first_few(bad)}."
        )
    return Sheet(sheet.path, sheet.header, tuple(tuple(row) for row in rows), sheet.lines)


def _read_domain(
    own: OwnTable, domain: str, *, label_map: LabelMap, require_images: bool, report: Report
) -> SceneTable:
    sheet = own.sheet.take([i for i, name in enumerate(own.domains) if name == domain])
    if require_images:
        sheet = _with_files(sheet, domain, report=report)
    cells = parse_labels(sheet, own.columns, extra=True)
    blank = [name for name, known in zip(own.columns, (cells != -1).any(axis=0), strict=True) if not known]
    sources = label_map.sources(domain, own.columns, blank=blank)
    paths = sheet.column("path")
    masks = [cell or None for cell in sheet.column("mask")] if "mask" in sheet.header else []
    if any(masks) and max(len(own.columns), len(sources)) > MASK_BITS:
        raise ValueError(
            f"Masks hold at most {MASK_BITS} labels, one per bit; '{sheet.path}' has {len(own.columns)} label columns "
            f"for a vocabulary of {len(sources)}. Leave the column `mask` out."
        )
    scenes = sheet.column("scene") if "scene" in sheet.header else ()
    return SceneTable(
        domain=domain,
        root=sheet.path.parent,
        vocabulary=label_map.vocabulary,
        keys=paths,
        labels=np.ascontiguousarray(merge_labels(cells, sources)),
        masks=tuple(masks) if any(masks) else None,
        groups=tuple(scene or path for scene, path in zip(scenes, paths, strict=True)) if any(scenes) else None,
        mask_bits=sources if any(masks) and sources != tuple((i,) for i in range(len(sources))) else None,
        gsd=_parse_gsd(sheet),
    )


def _parse_gsd(sheet: Sheet) -> tuple[float | None, ...] | None:
    if "gsd" not in sheet.header:
        return None
    values: list[float | None] = []
    bad = []
    for cell, line in zip(sheet.column("gsd"), sheet.lines, strict=True):
        try:
            value = float(cell) if cell else None
        except ValueError:
            value = math.nan
        if value is not None and not 0 < value < math.inf:
            bad.append(f"{cell} (line {line})")
        values.append(value)
    if bad:
        raise ValueError(
            f"`gsd` must be metres per pixel above 0, or blank where unknown; {len(bad)} rows of '{sheet.path}' have "
            f"others: {first_few(bad)}."
        )
    return tuple(values) if any(values) else None


def _with_files(sheet: Sheet, domain: str, *, report: Report) -> Sheet:
    """Return the rows whose image and mask exist; report the others."""
    folder = sheet.path.parent
    columns = [sheet.column(name) for name in ("path", "mask") if name in sheet.header]
    missing = {i: cell for column in columns for i, cell in enumerate(column) if cell and not (folder / cell).is_file()}
    if missing:
        message = f"{len(missing)} of {len(sheet.rows)} rows of domain {domain!r} name files that are not in '{folder}'"
        report(
            FileNotFoundError(f"{message}: {first_few(missing.values())}. Paths are relative to '{sheet.path.name}'.")
        )
    return sheet.take([i for i in range(len(sheet.rows)) if i not in missing])
