"""Contents of a data folder: official downloads by their layout, custom tables by their ``path`` column."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ldstyle.data.domains.archives import (
    ARCHIVES,
    Archive,
    Sea,
    find_downloads,
    find_label_table,
    images_without_table,
    is_label_table,
    read_archive,
)
from ldstyle.data.domains.csv import ALL_LABELS, LabelColumns, open_table, read_table, refuse_twins
from ldstyle.data.domains.csv_text import read_header, read_sheet
from ldstyle.data.domains.scene_table import PAPER_VOCABULARY, Report, SceneTable, fail
from ldstyle.data.domains.vocabulary import LabelMap, load_label_map
from ldstyle.messages import did_you_mean

OWN_TABLE = "labels.csv"
LAYOUT = (
    "folders with the official UCM, AID or DFC15, folders with a `labels.csv`, or a CSV with the columns `path` and "
    "`domain`"
)


@dataclass(frozen=True)
class Source:
    """Where a domain is read from.

    Attributes:
        path: Folder of an official download, or the file of a custom table.
        archive: The official download, or ``None`` for a custom table.
        columns: Label columns of a custom table.
    """

    path: Path
    archive: Archive | None
    columns: tuple[str, ...] = ()


def find_domains(
    root: Path, names: Collection[str] | None = None, *, columns: LabelColumns = ALL_LABELS
) -> dict[str, Source]:
    """Find the domains that ``root`` holds: the official downloads first, then custom tables.

    Args:
        root: The data folder.
        names: The domains in question. If they are downloads, or custom tables in folders of their names, no table of
            another custom domain is opened.
        columns: Which columns of custom tables are labels.
    """
    if root.is_file():
        raise NotADirectoryError(f"A data folder is needed; '{root}' is a file. Give its folder, '{root.parent}'.")
    if not root.is_dir():
        raise FileNotFoundError(
            f"There is no data folder '{root}'. Set --data or $LDSTYLE_DATA to a folder with {LAYOUT}."
        )
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    own = [path for folder in folders if (path := folder / OWN_TABLE).is_file() and not is_label_table(path)]
    domains = _official_domains([folder for folder in folders if folder / OWN_TABLE not in own])
    if names is not None:
        near = domains | _own_domains([path for path in own if path.parent.name in names], columns)
        if near.keys() >= set(names):
            return near
    tables = _own_domains([*own, *(path for path in _tables_in(root) if "path" in read_header(path))], columns)
    for name in sorted(domains.keys() & tables.keys()):
        raise _twice(name, domains[name].path, tables[name].path)
    for folder in folders:
        name = folder.name.lower()
        if name in ARCHIVES and name in (names or ()) and name not in domains | tables:
            find_label_table(ARCHIVES[name], folder)  # raises with the missing files
    if not domains and not tables:
        unused = [f"'{path.name}' {_why_unused(path)}" for path in _tables_in(root)[:3]]
        hint = " ".join(f"{sentence}." for sentence in (*unused, *unlabelled_downloads(root, {})))
        if any(map(is_label_table, _tables_in(root, "*.csv", "*.tsv", "*.txt"))):
            hint = f"Did you mean '{root.parent}'? '{root}' is the download itself."
        raise FileNotFoundError(f"No data found in '{root}'. Expected {LAYOUT}. {hint or 'See `ldstyle data --help`.'}")
    refuse_twins([*domains, *tables])
    return domains | tables


def unlabelled_downloads(root: Path, sources: Mapping[str, Source]) -> list[str]:
    """Name each folder with the images of an official download and without its label table, one sentence each."""
    if any(source.archive is None and source.path.parent == root for source in sources.values()):
        return []  # the images may be those of a custom table
    used = {path for source in sources.values() for path in (source.path, *source.path.parents)}
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    found = [(path, images_without_table(path)) for path in folders if path not in used]
    return [
        f"'{path.name}' has the images of {archive.title} and no label table, so it is not used. Add '{archive.table}'"
        for path, archive in found
        if archive is not None
    ]


def _why_unused(path: Path) -> str:
    """Explain why a CSV is not taken for a custom table."""
    try:
        header = read_sheet(path).header
    except (ValueError, OSError) as error:
        return f"is none: {str(error).rstrip('.')}"
    return f"has no column `path`, it has {list(header)}.{did_you_mean('path', header)}".rstrip(".")


def _tables_in(root: Path, *patterns: str) -> list[Path]:
    """Return the tables that lie in a folder itself; a pipe of such a name would be waited on for ever."""
    return sorted(path for pattern in patterns or ("*.csv",) for path in root.glob(pattern) if path.is_file())


def official_domains(sources: Mapping[str, Source]) -> dict[str, str]:
    """Return the domains that are official downloads by their layout, and which: domain to ``ucm``, ``aid``, ``dfc15``.

    A custom table is none, whatever its domains are called.
    """
    return {name: source.archive.domain for name, source in sources.items() if source.archive is not None}


def _official_domains(folders: Sequence[Path]) -> dict[str, Source]:
    found: dict[str, Source] = {}
    for archive, folder in (download for parent in folders for download in find_downloads(parent)):
        if archive.domain in found:
            raise ValueError(
                f"A data folder must hold {archive.title} once; '{found[archive.domain].path}' and '{folder}' both "
                "have its label table. Move one of them out of the data folder."
            )
        found[archive.domain] = Source(folder, archive)
    return {name: found[name] for name in ARCHIVES if name in found}


def _own_domains(paths: Sequence[Path], columns: LabelColumns) -> dict[str, Source]:
    domains: dict[str, Source] = {}
    # Errors in the rows are raised when they are read.
    opened = [(path, open_table(path, columns=columns, report=lambda problem: None)) for path in paths]
    for path, table in opened:
        for name in dict.fromkeys(table.domains):
            if name in domains:
                raise _twice(name, domains[name].path, path)
            domains[name] = Source(path, None, table.columns)
    return domains


def _twice(name: str, one: Path, other: Path) -> ValueError:
    return ValueError(f"Domain {name!r} stands both in '{one}' and in '{other}'. Rename one.")


def read_domains(
    root: Path,
    names: Sequence[str] | None = None,
    *,
    sea: Sea = "drop",
    mapping: Path | LabelMap | None = None,
    vocabulary: Sequence[str] | None = None,
    columns: LabelColumns = ALL_LABELS,
    require_images: bool = True,
    report: Report = fail,
) -> tuple[SceneTable, ...]:
    """Read the domains below ``root``, all into one vocabulary.

    Args:
        root: Folder that holds the official downloads, custom tables, or both.
        names: Domains to read, in this order; by default all.
        sea: What becomes of the label ``sea`` of UCM and AID.
        mapping: Label map, or its YAML file; it brings its own vocabulary.
        vocabulary: Label names to read into. By default the paper's if an official download is among the domains,
            otherwise the label columns of the custom tables in order of first appearance.
        columns: Which columns of custom tables are labels.
        require_images: Whether a row without an image is a problem.
        report: What to do about repeated rows, missing images and extra images.
    """
    sources = choose_domains(find_domains(root, names, columns=columns), names)
    if mapping is None and vocabulary is None:
        columns.require(read_header(source.path) for source in sources.values() if source.archive is None)
    label_map = shared_label_map(sources, mapping=mapping, vocabulary=vocabulary)
    return tuple(
        read_source(
            name, source, label_map=label_map, sea=sea, columns=columns, require_images=require_images, report=report
        )
        for name, source in sources.items()
    )


def read_source(
    name: str,
    source: Source,
    *,
    label_map: LabelMap,
    sea: Sea = "drop",
    columns: LabelColumns = ALL_LABELS,
    require_images: bool = True,
    report: Report = fail,
) -> SceneTable:
    """Read the domain ``name`` from where it was found; the settings are those of `read_domains`."""
    if source.archive is None:
        tables = read_table(
            source.path,
            mapping=label_map,
            domains=[name],
            columns=columns,
            require_images=require_images,
            report=report,
        )
        return tables[0]
    return read_archive(
        source.archive, source.path, sea=sea, label_map=label_map, require_images=require_images, report=report
    )


def choose_domains(found: Mapping[str, Source], names: Sequence[str] | None) -> dict[str, Source]:
    """Return the named domains in the order of ``names``, or all."""
    for name in names or ():
        if name not in found:
            raise ValueError(f"There is no domain {name!r}.{did_you_mean(name, found)} Choose from {list(found)}.")
    return {name: found[name] for name in (found if names is None else names)}


def shared_label_map(
    sources: Mapping[str, Source],
    *,
    mapping: Path | LabelMap | None = None,
    vocabulary: Sequence[str] | None = None,
) -> LabelMap:
    """Return the label map that the domains are read with; the settings are those of `read_domains`."""
    if mapping is not None:
        if vocabulary is not None:
            raise ValueError("`mapping` brings its own vocabulary; give either `mapping` or `vocabulary`.")
        return load_label_map(mapping) if isinstance(mapping, Path) else mapping
    if vocabulary is not None:
        return LabelMap(tuple(vocabulary))
    if any(source.archive for source in sources.values()):
        return LabelMap(PAPER_VOCABULARY)
    return LabelMap(tuple(dict.fromkeys(name for source in sources.values() for name in source.columns)))
