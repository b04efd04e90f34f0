"""Table 1: images, labels per image and positives per label, as counted here and as printed in the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ldstyle.data.domains.scene_table import SceneTable


@dataclass(frozen=True)
class Statistics:
    """One column of Table 1.

    Attributes:
        images: Number of images.
        labels_per_image: Mean number of present labels.
        positives: Images in which each label is present; ``None`` where the label is unknown throughout.
    """

    images: int
    labels_per_image: float
    positives: Mapping[str, int | None]


PAPER_TABLE_1: Mapping[str, Statistics] = {
    "ucm": Statistics(
        2100, 2.00, {"building": 691, "car": 886, "tree": 1009, "water": 203, "pavement": 1300, "ship": 102}
    ),
    "aid": Statistics(
        3000, 3.35, {"building": 2161, "car": 2026, "tree": 2406, "water": 852, "pavement": 2328, "ship": 284}
    ),
    "dfc15": Statistics(
        3342, 1.90, {"building": 1001, "car": 705, "tree": 258, "water": 998, "pavement": 3133, "ship": 270}
    ),
}


def count(table: SceneTable) -> Statistics:
    """Count what Table 1 counts; a label without a single known value has no count."""
    present = (table.labels == 1).sum(axis=0)
    known = (table.labels != -1).any(axis=0)
    return Statistics(
        images=len(table),
        labels_per_image=float(present.sum()) / max(len(table), 1),
        positives={label: int(present[i]) if known[i] else None for i, label in enumerate(table.vocabulary)},
    )


def differences(table: SceneTable) -> list[str]:
    """Return how the counts of an official download differ from Table 1, one sentence each; custom tables do not."""
    if table.archive is None:
        return []
    paper, here = PAPER_TABLE_1[table.archive], count(table)
    pairs: dict[str, tuple[int | None, int | None]] = {"images": (here.images, paper.images)}
    pairs |= {label: (here.positives.get(label), number) for label, number in paper.positives.items()}
    return [
        f"{table.domain}: {what} {found:d}, the paper has {printed}"
        for what, (found, printed) in pairs.items()
        if found is not None and found != printed
    ]


def tabulate(tables: Sequence[SceneTable], *, marked: bool = False) -> tuple[list[str], list[list[str]]]:
    """Return Table 1 as text, header and rows: for each domain its counts, next to the paper's column.

    Args:
        tables: The domains, of one vocabulary.
        marked: Whether a count that differs from the paper's carries the difference, e.g. ``2407 (+1)``.
    """
    header = ["statistic"]
    columns = [["images", "files found", "labels per image", "without label", *tables[0].vocabulary]]
    for table in tables:
        paper = None if table.archive is None else PAPER_TABLE_1[table.archive]
        header.append(table.domain)
        columns.append(_counted(table, paper if marked else None))
        if paper:
            header.append(f"{table.domain} (paper)")
            printed = [str(paper.positives.get(label, "")) for label in table.vocabulary]
            columns.append([str(paper.images), "", f"{paper.labels_per_image:.2f}", "", *printed])
    return header, [list(row) for row in zip(*columns, strict=True)]


def _counted(table: SceneTable, paper: Statistics | None) -> list[str]:
    here = count(table)
    printed = paper.positives if paper else {}
    return [
        _beside(here.images, paper.images if paper else None),
        str(sum(table.path(row).is_file() for row in range(len(table)))),
        f"{here.labels_per_image:.2f}",
        str(int((table.labels != 1).all(axis=1).sum())),
        *(_beside(number, printed.get(label)) for label, number in here.positives.items()),
    ]


def _beside(here: int | None, paper: int | None) -> str:
    if here is None:
        return "unknown"
    return str(here) if paper is None or here == paper else f"{here} ({here - paper:+d})"
