"""Pairs of images of two domains that share labels, and the regions of their labels, for figures of the method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.colors import to_rgb
from numpy.typing import NDArray
from torch import Tensor

from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.view import Results
from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.deploy.explain import Explainer
from ldstyle.report.figures.images import TrainedCell, read_images, read_pictures, read_regions, read_tables, unseen
from ldstyle.report.figures.style import COLOURS, UnavailableError

_CANDIDATES, _SMALL, _PIXELS = 60, 32, 160
_LEAST = 0.02
"""Fraction of the image below which a region is too small to be seen."""


@dataclass(frozen=True, eq=False)
class Scene:
    """An image with the regions of its labels.

    Attributes:
        domain: Its domain.
        key: Its name.
        image: (3, S, S) uint8.
        present: Which labels it has, (L,).
        attn: Attention of each label, (L, S, S), of any scale.
        seen: The image as a network takes it, (C, S, S), if that is not 8-bit RGB.
    """

    domain: str
    key: str
    image: Tensor
    present: Tensor
    attn: Tensor
    seen: Tensor | None = None


def scene_pairs(
    results: Results, cell: CellResult, trained: TrainedCell | None
) -> tuple[tuple[str, ...], list[tuple[Scene, Scene]], bool]:
    """Choose two pairs of held-out images whose shared labels are best to be seen, one in each direction."""
    every = unseen(read_tables(results, cell), cell)
    names = list(dict.fromkeys([*cell.sources, cell.target]))[:2]
    tables = [every[name] for name in names]
    if len(tables) < 2:
        raise UnavailableError("Two domains are needed, since styles come from another domain.")
    rows = [_candidates(table) for table in tables]
    by_masks = all(
        read_regions(table, some[:1], size=_SMALL) is not None for table, some in zip(tables, rows, strict=True)
    )
    if not by_masks and trained is None:
        raise UnavailableError("Masks or a trained model are needed for the regions of labels; there are neither here.")
    # One explainer for all: it studies the network first.
    explain = None if by_masks or trained is None else Explainer(trained.classifier)
    areas = [_areas(table, some, explain) for table, some in zip(tables, rows, strict=True)]
    pairs, used = [], set[tuple[int, int]]()
    for a, b in ((0, 1), (1, 0)):
        i, j = _best_pair(areas[a], areas[b], used, (a, b))
        used |= {(a, i), (b, j)}
        one, other = (
            _scene(tables[side], rows[side][row], explain, shown=cell.shown, trained=trained)
            for side, row in ((a, i), (b, j))
        )
        pairs.append((one, other))
    return tables[0].vocabulary, pairs, by_masks


def _candidates(table: SceneTable) -> list[int]:
    rows = np.flatnonzero((table.labels == 1).any(axis=1))
    if not len(rows):
        raise UnavailableError(f"No held-out image of {table.domain} has a label.")
    return [int(rows[position]) for position in np.linspace(0, len(rows) - 1, min(_CANDIDATES, len(rows))).astype(int)]


def _areas(table: SceneTable, rows: Sequence[int], explain: Explainer | None) -> NDArray[np.float64]:
    """Return the fraction of each image that each of its labels covers, (N, L)."""
    regions = read_regions(table, rows, size=_SMALL) if explain is None else None
    if regions is None:
        assert explain is not None
        maps = explain(read_images(table, rows, explain.classifier.model)).maps
        regions = core(maps).numpy()
    covered: NDArray[np.float64] = regions.mean(axis=(2, 3)) * (table.labels[list(rows)] == 1)
    return covered


def core(maps: Tensor) -> Tensor:
    """Return where maps (..., h, w) reach half of their maximum."""
    highest = maps.amax(dim=(-2, -1), keepdim=True)
    return (maps >= 0.5 * highest) & (highest > 0)


def _best_pair(
    own: NDArray[np.float64], other: NDArray[np.float64], used: set[tuple[int, int]], sides: tuple[int, int]
) -> tuple[int, int]:
    """Return the pair that shares most labels, none of them hardly visible and none all over the image."""
    visible = [np.where(areas >= _LEAST, np.minimum(areas, 0.3), 0.0) for areas in (own, other)]
    common = np.minimum(visible[0][:, None], visible[1][None])  # (N, M, L)
    score = np.sqrt(common).sum(axis=2)
    for side, row in used:
        if side == sides[0]:
            score[row] = -1
        if side == sides[1]:
            score[:, row] = -1
    best = int(score.argmax())
    return best // score.shape[1], best % score.shape[1]


def _scene(
    table: SceneTable, row: int, explain: Explainer | None, *, shown: Sequence[int] | None, trained: TrainedCell | None
) -> Scene:
    image = read_pictures(table, [row], size=_PIXELS, shown=shown)
    present = torch.from_numpy(table.labels[row] == 1)
    if explain is None:
        regions = read_regions(table, [row], size=_PIXELS)
        assert regions is not None
        attn = _blurred(torch.from_numpy(regions).float())
    else:
        maps = explain(read_images(table, [row], explain.classifier.model)).maps
        attn = F.interpolate(maps.float(), size=(_PIXELS, _PIXELS), mode="bilinear", align_corners=False)
    # The network sees 8-bit RGB as it is shown, and other bands as they are.
    seen = None if shown is None or trained is None else read_images(table, [row], trained.classifier.model)[0]
    return Scene(table.domain, table.keys[row], image[0], present, attn[0] * present[:, None, None], seen)


def _blurred(regions: Tensor) -> Tensor:
    """Soften the edges of regions, so that locations near a small one come next in its ranking."""
    width = _PIXELS // 40 * 2 + 1
    for _ in range(3):
        regions = F.avg_pool2d(regions, width, stride=1, padding=width // 2, count_include_pad=False)
    return regions


def label_colours(scenes: Iterable[Scene]) -> dict[int, str]:
    """Return a colour for each label that any of the scenes has."""
    labels = sorted({int(label) for scene in scenes for label in scene.present.nonzero()[:, 0]})
    return {label: COLOURS[n % len(COLOURS)] for n, label in enumerate(labels)}


def tint_regions(image: NDArray[np.float32], scene: Scene, colours: Mapping[int, str]) -> NDArray[np.float32]:
    """Tint each label's region over a grey image."""
    grey = np.repeat(image.mean(axis=2, keepdims=True), 3, axis=2)
    tinted = grey.copy()
    cores = {label: core(scene.attn[label]).numpy() for label in scene.present.nonzero()[:, 0].tolist()}
    # The largest first: a car stands on its street, not below it.
    for label, where in sorted(cores.items(), key=lambda one: -one[1].sum()):
        tinted[where] = 0.4 * grey[where] + 0.6 * np.array(to_rgb(colours[label]), dtype=np.float32)
    return tinted
