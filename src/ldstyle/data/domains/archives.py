"""Readers of the official multi-label UCM, AID and DFC15 downloads, in the layouts in which they are found."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

from ldstyle.data.domains.csv_text import Sheet, drop_duplicates, parse_labels, read_sheet, read_start
from ldstyle.data.domains.scene_table import IMAGE_SUFFIXES, PAPER_VOCABULARY, Report, SceneTable, fail
from ldstyle.data.domains.vocabulary import LabelMap, merge_labels
from ldstyle.messages import did_you_mean, first_few

Sea: TypeAlias = Literal["drop", "water+sea"]
"""What becomes of the label ``sea`` of UCM and AID: dropped, as Table 1 has it, or merged into ``water``."""

_SHARED_NAMES = {"buildings": "building", "cars": "car", "trees": "tree", "water": "water", "pavement": "pavement"}


@dataclass(frozen=True)
class Archive:
    """Properties of an official download.

    Attributes:
        domain: Name of the domain.
        title: Name in messages.
        images: Number of images in the release.
        layout: Where the release has its images.
        table: What the release calls its label table.
        rows: How the release names its images, in lower case.
        ground: Side of the smallest and of the largest image on the ground, in metres, as Table 1 has it.
        names: Label names of its table to labels of the paper's vocabulary; all others are outside of it.
    """

    domain: str
    title: str
    images: int
    layout: str
    table: str
    rows: re.Pattern[str]
    ground: tuple[float, float]
    names: dict[str, str]


UCM = Archive(
    domain="ucm",
    title="UCM",
    images=2100,
    layout="'UCMerced_LandUse/Images/<class>/'",
    table="LandUse_Multilabeled.txt",
    rows=re.compile(r"[a-z]+\d\d"),
    ground=(76.8, 76.8),
    names={**_SHARED_NAMES, "ship": "ship"},
)
AID = Archive(
    domain="aid",
    title="AID",
    images=3000,
    layout="'images_tr/<Class>/' and 'images_test/<Class>/'",
    table="multilabel.csv",
    rows=re.compile(r"[a-z]+_\d+"),
    ground=(300.0, 4800.0),
    names={**_SHARED_NAMES, "ship": "ship"},
)
DFC15 = Archive(
    domain="dfc15",
    title="DFC15",
    images=3342,
    layout="'images_tr/' and 'images_test/'",
    table="multilabel.csv",
    rows=re.compile(r"\d+"),
    ground=(30.0, 30.0),
    names={
        "building": "building",
        "car": "car",
        "tree": "tree",
        "water": "water",
        "impervious": "pavement",
        "boat": "ship",
    },
)
ARCHIVES = {archive.domain: archive for archive in (UCM, AID, DFC15)}


def read_ucm(root: Path, *, sea: Sea = "drop") -> SceneTable:
    """Read multi-label UC Merced below ``root``; see `read_archive`."""
    return read_archive(UCM, root, sea=sea)


def read_aid(root: Path, *, sea: Sea = "drop") -> SceneTable:
    """Read multi-label AID below ``root``; see `read_archive`."""
    return read_archive(AID, root, sea=sea)


def read_dfc15(root: Path, *, sea: Sea = "drop") -> SceneTable:
    """Read multi-label DFC15 below ``root``, which has no ``sea``; see `read_archive`."""
    return read_archive(DFC15, root, sea=sea)


def read_archive(
    archive: Archive,
    root: Path,
    *,
    sea: Sea = "drop",
    label_map: LabelMap | None = None,
    require_images: bool = True,
    report: Report = fail,
) -> SceneTable:
    """Read an official download: its label table and its images, wherever below ``root`` they are.

    Args:
        archive: Which download.
        root: Its folder.
        sea: What becomes of the label ``sea``.
        label_map: Vocabulary to read into instead of the paper's; names of the paper keep their meaning where the
            vocabulary has it, and a section for this domain adds to it.
        require_images: Whether a row without an image is a problem; if not, its key is its name in the table.
        report: What to do about repeated rows, missing images and extra images.

    Returns:
        The rows in the order of their keys, whatever the order in the table.
    """
    sheet = read_sheet(find_label_table(archive, root))
    column = sheet.header[0]
    sheet = drop_duplicates(sheet, column, [_image_name(cell) for cell in sheet.column(column)], report=report)
    columns = sheet.header[1:]
    sources = _meanings(archive, sheet, sea=sea, label_map=label_map).sources(archive.domain, columns)
    labels = merge_labels(parse_labels(sheet, columns), sources)
    files = _match_images(archive, root, sheet, require_images=require_images, report=report)
    rows = {files.get(_image_name(cell), cell): i for i, cell in enumerate(sheet.column(column))}
    found = set(files.values())
    keys = sorted(key for key in rows if key in found or not require_images)
    return SceneTable(
        domain=archive.domain,
        root=root,
        vocabulary=label_map.vocabulary if label_map else PAPER_VOCABULARY,
        keys=tuple(keys),
        labels=labels[[rows[key] for key in keys]],
        archive=archive.domain,
    )


def find_label_table(archive: Archive, root: Path) -> Path:
    r"""Find the label table below ``root`` by its header, whose first cell is ``IMAGE\LABEL`` in any case."""
    if not root.is_dir():
        raise FileNotFoundError(f"{archive.title} not found: there is no folder '{root}'. See `ldstyle data --help`.")
    found = _label_tables(root)
    if not found:
        raise FileNotFoundError(
            f"{archive.title} label table not found in '{root}'. Expected '{archive.table}' with a first cell "
            f"IMAGE\\LABEL. See `ldstyle data --help`."
        )
    if len(found) > 1:
        names = first_few(str(path.relative_to(root)) for path in found)
        raise ValueError(f"{archive.title} must have one label table; '{root}' has {len(found)}: {names}. Keep one.")
    return found[0]


def find_downloads(root: Path) -> list[tuple[Archive, Path]]:
    """Find the official downloads below ``root`` by their label tables, whatever the folders are called.

    A folder whose label tables are all of one download is the folder of that download; one with tables of several is
    searched folder by folder.

    Raises:
        ValueError: A folder mixes the files of several downloads.
    """
    archives = {path: archive for path in _label_tables(root) if (archive := _identify(path)) is not None}
    found = {archive.domain: archive for archive in archives.values()}
    if len(found) < 2:
        return [(archive, root) for archive in found.values()]
    if any(path.parent == root for path in archives):
        names = first_few(str(path.relative_to(root)) for path in archives)
        raise ValueError(
            f"Each official download needs a folder of its own; '{root}' has the label tables {names}. Move each "
            "table into a folder with its images."
        )
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [download for folder in folders for download in find_downloads(folder)]


def images_without_table(root: Path) -> Archive | None:
    """Return the download whose images ``root`` has, by the names of the folders they are in, if it has no table."""
    if _label_tables(root):
        return None
    parts = {part for path in find_images(root) for part in zip(path.parts, path.parts[1:-1], strict=False)}
    if any(one == "UCMerced_LandUse" for one, _ in parts):
        return UCM
    inside = {below for one, below in parts if one in ("images_tr", "images_test")}
    flat = any(below in ("images_tr", "images_test") for _, below in parts)
    return AID if inside else DFC15 if flat else None


def is_label_table(path: Path) -> bool:
    r"""Whether a text file begins as the label tables of the releases do, by ``IMAGE\LABEL``."""
    with path.open("rb") as file:
        start = file.read(64).decode("utf-8-sig", errors="replace").lower().replace("/", "\\")
    return start.lstrip(' "').replace(" ", "").startswith("image\\label")


def _identify(path: Path) -> Archive | None:
    """Return the download that a label table is of: by the names of its images and half of its labels or more."""
    header, first = read_start(path)
    name = _image_name(first[0]) if first else ""
    for archive in ARCHIVES.values():
        if archive.rows.fullmatch(name) and 2 * len(archive.names.keys() & set(header)) >= len(archive.names):
            return archive
    return None


def _label_tables(root: Path) -> list[Path]:
    candidates = [path for path in _files_below(root) if path.suffix.lower() in (".csv", ".tsv", ".txt")]
    return [path for path in candidates if path.is_file() and is_label_table(path)]


def find_images(root: Path) -> list[Path]:
    """Return every image file below ``root`` by its suffix, in order; hidden files and folders are passed over."""
    return [path for path in _files_below(root) if path.suffix.lower() in IMAGE_SUFFIXES]


def _files_below(root: Path) -> list[Path]:
    files = []
    seen: set[tuple[int, int]] = set()
    # Data folders are often links to another disk, and some links lead back to where they are.
    for folder, below, names in os.walk(root, followlinks=True):
        where = Path(folder).stat()
        if (where.st_dev, where.st_ino) in seen:
            below.clear()
            continue
        seen.add((where.st_dev, where.st_ino))
        below[:] = sorted(name for name in below if not name.startswith(".") and name != "__MACOSX")
        files += [Path(folder, name) for name in sorted(names) if not name.startswith(".")]
    return files


def _image_name(text: str) -> str:
    """Bring a row's or a file's name to one spelling: no folder, no suffix, lower case, no leading zeros in numbers."""
    path = PurePosixPath(text.replace("\\", "/"))
    name = (path.stem if path.suffix.lower() in IMAGE_SUFFIXES else path.name).lower()
    return str(int(name)) if name.isdecimal() else name


def _meanings(archive: Archive, sheet: Sheet, *, sea: Sea, label_map: LabelMap | None) -> LabelMap:
    """Complete the label map with the paper's mapping of this archive's columns."""
    columns = sheet.header[1:]
    names = dict(archive.names)
    match sea:
        case "drop":
            pass
        case "water+sea":
            names |= {"sea": "water"} if "sea" in columns else {}
        case _:
            raise ValueError(f"`sea` must be 'drop' or 'water+sea'; got {sea!r}.")
    vocabulary = label_map.vocabulary if label_map else PAPER_VOCABULARY
    given = label_map.domains.get(archive.domain, {}) if label_map else {}
    for name, label in names.items():
        if label in vocabulary and not {name, label} & {*columns, *given.values()}:
            raise ValueError(
                f"{archive.title} has a label {name!r}; the header of '{sheet.path}' does not, it has {list(columns)}."
                f"{did_you_mean(name, columns)}"
            )
    section = {name: next((word for word in (names.get(name), name) if word in vocabulary), None) for name in columns}
    return LabelMap(vocabulary, {archive.domain: {**section, **given}})


def _match_images(
    archive: Archive, root: Path, sheet: Sheet, *, require_images: bool, report: Report
) -> dict[str, str]:
    """Return the image of each row that has one, as name to key; report rows without one and images without a row."""
    files = defaultdict(list)
    for path in find_images(root):
        files[_image_name(path.name)].append(path.relative_to(root).as_posix())
    rows = {_image_name(cell): cell for cell in sheet.column(sheet.header[0])}
    found = sum(name in files for name in rows)
    expected = f"Expected {archive.images} files below {archive.layout}"
    help_ = "See `ldstyle data --help`."
    missing = [cell for name, cell in rows.items() if name not in files]
    if require_images and not found:
        report(FileNotFoundError(f"{archive.title} images not found in '{root}'. {expected}; found 0. {help_}"))
    elif require_images and missing:
        report(
            FileNotFoundError(
                f"{len(missing)} of {len(rows)} {archive.title} images not found in '{root}': {first_few(missing)}. "
                f"{expected}. {help_}"
            )
        )
    several = [" = ".join(paths) for name, paths in files.items() if len(paths) > 1 and name in rows]
    if several:
        message = f"Each {archive.title} row must have one image; {len(several)} in '{root}' have several"
        raise ValueError(f"{message}: {first_few(several)}. Keep one of each.")
    extra = [path for name, paths in files.items() if name not in rows for path in paths]
    if extra:
        message = (
            f"Every {archive.title} image must have a row; {len(extra)} in '{root}' have none in '{sheet.path.name}'"
        )
        report(ValueError(f"{message}: {first_few(extra)}. Move them out of the folder."))
    return {name: paths[0] for name, paths in files.items() if name in rows}
