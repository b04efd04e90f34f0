"""Checks of the files of a domain: layout, counts, and images that cannot be read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ldstyle.data.domains.archives import Sea
from ldstyle.data.domains.csv import ALL_LABELS, LabelColumns, unlisted_images
from ldstyle.data.domains.discovery import Source, read_source
from ldstyle.data.domains.scene_table import Progress, SceneTable
from ldstyle.data.domains.table1 import differences
from ldstyle.data.domains.vocabulary import LabelMap
from ldstyle.data.loading.bands import find_format, image_extent, load_image
from ldstyle.data.loading.decode import decode_mask, image_size, tiff_bands
from ldstyle.data.loading.image_format import Bands, ImageFormat, Range
from ldstyle.messages import first_few, kinds_of

PROBE_SIZE = 32


@dataclass(frozen=True)
class Inspection:
    """Findings in one domain.

    Attributes:
        domain: Name of the domain.
        rows: Rows of the label table.
        readable: How many of their images are there and can be decoded.
        sizes: Image sizes, as ``256×256``, and how many images have each.
        problems: What must be mended, one sentence per kind.
        notes: Remarks: differences from Table 1, images that a custom table does not list.
        counts: Images in which each label is present, and in which it is known.
    """

    domain: str
    rows: int
    readable: int
    sizes: Counter[str]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    counts: Mapping[str, tuple[int, int]]


def inspect_domain(
    name: str,
    source: Source,
    *,
    label_map: LabelMap,
    sea: Sea = "drop",
    columns: LabelColumns = ALL_LABELS,
    bands: Bands = (),
    value_range: Range = (),
    progress: Progress | None = None,
) -> Inspection:
    """Read a domain's table and decode each of its images; problems are collected, not raised.

    ``bands`` and ``value_range`` are the settings ``data.bands`` and ``data.range`` of images that are not 8-bit RGB.
    """
    problems: list[Exception] = []
    try:
        # Labels are counted over all rows, whether their images are there or not.
        read = partial(read_source, name, source, label_map=label_map, sea=sea, columns=columns)
        labelled = read(require_images=False, report=lambda problem: None)
        table = read(report=problems.append)
    except (ValueError, TypeError, OSError) as error:
        return Inspection(name, 0, 0, Counter(), (*map(str, problems), str(error)), (), {})
    try:
        there = [row for row in range(len(table)) if table.path(row).is_file()]
        image_format = find_format(bands, value_range, [table], [there]) if there else None
    except (OSError, ValueError) as error:
        return Inspection(
            name, len(labelled), 0, Counter(), (*map(str, problems), str(error)), (), _count_labels(labelled)
        )
    sizes, unreadable = _probe(table, image_format, progress)
    sentences = [str(problem) for problem in problems]
    if unreadable:
        count = f"{len(unreadable)} of {len(table)} samples"
        sentences.append(f"{count} of {name!r} cannot be read. {kinds_of(unreadable)}")
    notes = differences(labelled)
    unscaled = 0 if labelled.gsd is None else sum(value is None for value in labelled.gsd)
    if unscaled:
        notes.append(f"{name}: gsd is blank in {unscaled} of {len(labelled)} rows")
    if image_format is None and there and tiff_bands(table.path(there[0])) == 4:
        notes.append(
            f"{name}: images such as '{table.path(there[0])}' have 4 bands, of which the first three are used; "
            "--bands 1 2 3 4 uses all (--data.bands 1,2,3,4 in training)"
        )
    unlisted = [] if source.archive else unlisted_images(source.path)
    if unlisted:
        notes.append(f"{name}: {len(unlisted)} images are not in '{source.path.name}': {first_few(unlisted)}")
    readable = len(table) - len(unreadable)
    return Inspection(name, len(labelled), readable, sizes, tuple(sentences), tuple(notes), _count_labels(labelled))


def unknown_labels(inspections: Sequence[Inspection]) -> list[str]:
    """Name each label that domains leave blank in every row, one sentence each."""
    read = [one for one in inspections if one.counts]
    sentences = []
    for label in dict.fromkeys(label for one in read for label in one.counts):
        blank = [one.domain for one in read if not one.counts.get(label, (0, 0))[1]]
        where = "every domain" if len(blank) == len(read) else ", ".join(blank)
        if blank:
            sentences.append(f"{label} is unknown in every row of {where}; trained on these alone, it is not learned")
    return sentences


def _count_labels(table: SceneTable) -> dict[str, tuple[int, int]]:
    present, known = (table.labels == 1).sum(axis=0), (table.labels != -1).sum(axis=0)
    return {label: (int(present[i]), int(known[i])) for i, label in enumerate(table.vocabulary)}


def _probe(
    table: SceneTable, image_format: ImageFormat | None, progress: Progress | None
) -> tuple[Counter[str], list[str]]:
    """Decode every image and mask; return the sizes of the images that can be, and why the others cannot."""
    sizes: Counter[str] = Counter()
    unreadable = []
    masks = table.masks or (None,) * len(table)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        samples = pool.map(partial(_decode, table.root, image_format), table.keys, masks)
        for done, (size, reason) in enumerate(samples, start=1):
            if reason:
                unreadable.append(reason)
            else:
                sizes[size] += 1
            if progress:
                progress(done, len(table), table.domain)
    return sizes, unreadable


def _decode(root: Path, image_format: ImageFormat | None, key: str, mask: str | None) -> tuple[str, str]:
    """Return the size of an image as text, or why it or its mask cannot be decoded."""
    try:
        load_image(root / key, PROBE_SIZE, image_format)
        if mask:
            decode_mask(root / mask, PROBE_SIZE)
        width, height = image_size(root / key) if image_format is None else image_extent(root / key)
        return f"{width}×{height}", ""
    except (ValueError, OSError) as error:
        return "", str(error)
