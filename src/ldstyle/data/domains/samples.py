"""The class-samples figure: how each label looks in each domain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.data.loading.bands import read_picture
from ldstyle.seeding import derive_seed

INK = "#222222"
QUIET = "#6b6b6b"
EMPTY = "#eeeeee"


def pick_samples(table: SceneTable, *, per_cell: int, seed: int = 0) -> list[list[int]]:
    """Choose rows that show each label.

    Where images are sorted into folders by scene, those of the folders in which the label is most frequent come first
    (a parking lot shows cars better than a beach with one car on it); otherwise chance decides. A row is shown once
    if there are enough.

    Args:
        table: The domain.
        per_cell: Rows per label.
        seed: Decides among equals.

    Returns:
        For each label at most ``per_cell`` rows in which it is present.
    """
    present = table.labels == 1
    order = np.random.default_rng(derive_seed("samples", seed, table.domain)).permutation(len(table))
    frequency = _frequency_in_folder(table, present)
    picked: list[list[int]] = [[] for _ in table.vocabulary]
    used: set[int] = set()
    # Rare labels choose first, or frequent ones would take their images.
    for label in np.argsort(present.sum(axis=0), kind="stable"):
        ranked = order[np.argsort(-frequency[order, label], kind="stable")]
        rows = [int(row) for row in ranked if present[row, label]]
        picked[label] = sorted(rows, key=lambda row: row in used)[:per_cell]
        used.update(picked[label])
    return picked


def _frequency_in_folder(table: SceneTable, present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the fraction of images with each label in the scene folder of each row, (N, L)."""
    names = [PurePosixPath(key).parent.name for key in table.keys]
    _, folder = np.unique(names, return_inverse=True)
    counts = np.zeros((folder.max(initial=-1) + 1, present.shape[1]))
    np.add.at(counts, folder, present)
    fractions: NDArray[np.float64] = (counts / np.bincount(folder)[:, None])[folder]
    return fractions


def class_samples(
    tables: Sequence[SceneTable],
    *,
    per_cell: int = 3,
    size: int = 128,
    seed: int = 0,
    shown: Sequence[int] | None = None,
) -> Figure:
    """Draw a grid of samples, a row per label and a block of columns per domain.

    Args:
        tables: The domains, of one vocabulary.
        per_cell: Images per label and domain.
        size: Pixels per image side.
        seed: Decides which images are shown.
        shown: Bands to show as red, green and blue, empty for the first three; ``None`` for 8-bit RGB.
    """
    labels, blocks = tables[0].vocabulary, len(tables)
    side, gap, left, top = 1.0, 0.16, 1.15, 0.62
    width = left + blocks * per_cell * side + (blocks - 1) * gap + 0.08
    height = top + len(labels) * side + 0.08
    figure = Figure(figsize=(width, height), dpi=size, facecolor="white")
    for block, table in enumerate(tables):
        x = left + block * (per_cell * side + gap)
        middle = (x + per_cell * side / 2) / width
        figure.text(
            middle, 1 - 0.24 / height, table.domain, ha="center", va="center", size=15, weight="bold", color=INK
        )
        figure.text(middle, 1 - 0.47 / height, f"{len(table)} images", ha="center", va="center", size=10, color=QUIET)
        for label, rows in enumerate(pick_samples(table, per_cell=per_cell, seed=seed)):
            y = height - top - (label + 1) * side
            cell = (x / width, y / height, per_cell * side / width, side / height)
            _draw_cell(
                figure.add_axes(cell),
                table,
                label,
                [read_picture(table.path(row), size, shown).transpose(1, 2, 0) for row in rows],
                per_cell,
            )
    for label, name in enumerate(labels):
        y = (height - top - (label + 0.5) * side) / height
        figure.text((left - 0.12) / width, y, name, ha="right", va="center", size=13, color=INK)
    return figure


def _draw_cell(axes: Axes, table: SceneTable, label: int, images: Sequence[NDArray[np.uint8]], per_cell: int) -> None:
    axes.set(xlim=(0, per_cell), ylim=(0, 1), xticks=[], yticks=[], facecolor=EMPTY)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if not images:
        known = bool((table.labels[:, label] != -1).any())
        text = "none present" if known else "unknown in this domain"
        axes.text(per_cell / 2, 0.5, text, ha="center", va="center", size=10, color=QUIET)
    margin = 0.02
    for i, image in enumerate(images):
        axes.imshow(
            image, extent=(i + margin, i + 1 - margin, margin, 1 - margin), aspect="auto", interpolation="lanczos"
        )
    axes.set(xlim=(0, per_cell), ylim=(0, 1))


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure as PNG; the file is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.tmp")
    try:
        figure.savefig(partial, format="png")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
