"""Target images with true and predicted labels and class activation maps, for the page's image browser."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image

from ldstyle.benchmark.grid.methods import BASELINE, ORACLE
from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.reading import DamagedFileError, read_predictions, reading
from ldstyle.benchmark.results.records import RECORDS
from ldstyle.benchmark.results.statistics import best
from ldstyle.benchmark.results.view import Results
from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.data.loading.bands import load_image, read_picture
from ldstyle.deploy.classifier import load
from ldstyle.deploy.explain import Explainer, heatmaps
from ldstyle.report.model import Absent
from ldstyle.runs.model_file import WEIGHTS
from ldstyle.seeding import derive_seed

SLUG, TITLE = "images", "Images"
IMAGES = 60
AT_RANDOM = 12
"""Images per target that are drawn at random and not picked for their errors, so that failures do not seem the rule."""

THUMBNAIL = 128
HIT, MISSED, FALSE_ALARM, ABSENT, UNKNOWN = "hmfau"
"""Verdicts on a label: true positive, false negative, false positive, true negative, unknown truth or score."""

OPACITY = 0.7
"""Of the greatest heat; the image stays visible below."""

_JPEG_QUALITY = 80
_LEVELS = 16  # of heat; a palette of 16 takes half a byte per location, and smooth enlarging hides the steps
_BATCH = 16


@dataclass(frozen=True)
class View:
    """The predictions of one model for the images of a target.

    Attributes:
        cell: Name of the cell.
        method: Name of the method.
        title: The method's name in tables.
        seed: Seed of the run.
        thresholds: Decision threshold of each of the L labels.
        probabilities: By image and label, (N, L).
        verdicts: For each image a word of L letters, see ``HIT`` and the others.
        errors: For each image the number of wrong labels, plus a fraction for how wrong they are.
        heat: By image and label a tiny PNG in base64, or ``None`` without the model's weights.
    """

    cell: str
    method: str
    title: str
    seed: int
    thresholds: tuple[float, ...]
    probabilities: tuple[tuple[float, ...], ...]
    verdicts: tuple[str, ...]
    errors: tuple[float, ...]
    heat: tuple[tuple[str, ...], ...] | None


@dataclass(frozen=True)
class Target:
    """Images of a target and the predictions of some models.

    Attributes:
        group: The results the models are from, where there are several.
        split: Name of the split.
        domain: Name of the target.
        vocabulary: Names of the L labels.
        total: Images of the target that the models were scored on.
        keys: Names of the N images shown.
        thumbnails: The images as JPEG in base64.
        random: Whether an image was drawn at random, not picked for its errors.
        views: One per model.
    """

    group: str
    split: str
    domain: str
    vocabulary: tuple[str, ...]
    total: int
    keys: tuple[str, ...]
    thumbnails: tuple[str, ...]
    random: tuple[bool, ...]
    views: tuple[View, ...]


@dataclass(frozen=True)
class BrowserData:
    """The data of the image browser.

    Attributes:
        targets: The targets.
        notes: Missing data, and why they are missing.
    """

    targets: tuple[Target, ...]
    notes: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return it as plain values for JSON."""
        return asdict(self)


def build_browser(results: Results, *, group: str = "", images: int = IMAGES) -> BrowserData | Absent:
    """Collect images, predictions and heatmaps of plain training and the best method, on every target.

    Of each, the first finished seed is shown. Most images are those with the largest errors of these models, some are
    drawn at random. Files that cannot be read are added to ``results.damaged``.

    Args:
        results: The grid, with its results folder.
        group: Name of the grid, where a page shows several.
        images: Images per target.

    Returns:
        The data, or why there are none.
    """
    chosen = choose_cells(results)
    if not chosen or results.folder is None:
        return Absent(SLUG, TITLE, f"No run is finished yet. `{results.command()}` runs those that are missing.")
    collector = _Collector(results, results.folder)
    found = tuple(target for cells in chosen if (target := collector.target(cells, group=group, images=images)))
    notes = tuple(dict.fromkeys(collector.notes))
    return BrowserData(found, notes) if found else Absent(SLUG, TITLE, " ".join(notes))


def join_browsers(browsers: Iterable[BrowserData | Absent]) -> BrowserData | Absent:
    """Join the browsers of several grids; absent ones become notes where another exists."""
    listed = list(browsers)
    found = [one for one in listed if isinstance(one, BrowserData)]
    reasons = tuple(dict.fromkeys(one.reason for one in listed if isinstance(one, Absent)))
    if not found:
        return Absent(SLUG, TITLE, " ".join(reasons) or "There are no results.")
    targets = tuple(target for one in found for target in one.targets)
    return BrowserData(targets, tuple(dict.fromkeys([*(note for one in found for note in one.notes), *reasons])))


def choose_cells(results: Results) -> list[list[CellResult]]:
    """Choose the cells of each split: plain training and the best other method, each at its first finished seed."""
    grid = results.main.without(ORACLE)
    others = {method: grid.entry(method, part="all") for method in grid.methods if method != BASELINE}
    # Without a complete entry nothing is best yet; any method will do then.
    methods = list(dict.fromkeys([*([BASELINE] if BASELINE in grid.methods else []), *best(others), *others]))[:2]
    chosen = []
    for split in grid.splits:
        done = [[cell for cell in grid.of(method, split) if cell.status == "done"] for method in methods]
        if any(done):
            chosen.append([cells[0] for cells in done if cells])
    return chosen


def judge(
    scores: NDArray[np.float64], labels: NDArray[np.int8], thresholds: NDArray[np.float64]
) -> tuple[list[str], NDArray[np.float64]]:
    """Judge every label of every image.

    Args:
        scores: Probabilities, NaN for labels without training data, (N, L).
        labels: 1 present, 0 absent, -1 unknown, (N, L).
        thresholds: A label is found where its score reaches this, (L,).

    Returns:
        A word of L verdicts per image, and its error, (N,): the number of wrong labels plus a fraction that
        grows with the distance of the wrong scores from their thresholds.
    """
    found = scores >= thresholds
    table = np.where(labels == 1, np.where(found, HIT, MISSED), np.where(found, FALSE_ALARM, ABSENT))
    table = np.where((labels == -1) | np.isnan(scores), UNKNOWN, table)
    wrong = (table == MISSED) | (table == FALSE_ALARM)
    margin = np.where(wrong, np.abs(scores - thresholds), 0.0).sum(axis=1)
    errors: NDArray[np.float64] = wrong.sum(axis=1) + margin / (scores.shape[1] + 1)
    return ["".join(row) for row in table], errors


def pick_images(
    errors: Sequence[NDArray[np.float64]], *, count: int, at_random: int, seed: int
) -> tuple[list[int], set[int]]:
    """Pick images by the errors of several models: their worst ones in turn, then some at random.

    Args:
        errors: Error of each image, (N,), by model.
        count: Images to pick in all.
        at_random: How many of them to draw at random.
        seed: Decides which.

    Returns:
        The images, and those of them that were drawn.
    """
    total = len(errors[0])
    orders = [np.argsort(-one, kind="stable") for one in errors]
    worst = dict.fromkeys(int(order[rank]) for rank in range(total) for order in orders)
    picked = list(worst)[: max(0, min(count, total) - at_random)]
    rest = np.setdiff1d(np.arange(total), picked)
    drawn = np.random.default_rng(seed).permutation(rest)[: min(count, total) - len(picked)]
    return [*picked, *(int(row) for row in drawn)], {int(row) for row in drawn}


@dataclass(frozen=True, eq=False)
class _Predictions:
    cell: CellResult
    scores: NDArray[np.float64]
    labels: NDArray[np.int8]
    keys: tuple[str, ...]
    thresholds: NDArray[np.float64]


class _Collector:
    """Reads predictions, images and models of a grid, and keeps a note of each that is missing."""

    def __init__(self, results: Results, folder: Path) -> None:
        self.results, self.folder = results, folder
        self.notes: list[str] = []

    def target(self, cells: Sequence[CellResult], *, group: str, images: int) -> Target | None:
        predictions = [found for cell in cells if (found := self._predictions(cell)) is not None]
        # Models of one grid see the same images in the same order; others cannot be shown next to each other.
        predictions = [one for one in predictions if one.keys == predictions[0].keys]
        if not predictions:
            return None
        cell, keys = predictions[0].cell, predictions[0].keys
        table = self._table(cell)
        if table is None:
            return None
        judged = [judge(one.scores, one.labels, one.thresholds) for one in predictions]
        rows, drawn = pick_images(
            [errors for _, errors in judged],
            count=images,
            at_random=min(AT_RANDOM, images // 4),
            seed=derive_seed("browser", cell.target),
        )
        known = set(table.keys)
        paths = {row: table.root / keys[row] for row in rows if keys[row] in known}
        thumbnails = {row: text for row, path in paths.items() if (text := _thumbnail(path, cell.shown)) is not None}
        if len(thumbnails) < len(rows):
            missing = len(rows) - len(thumbnails)
            self.notes.append(f"{missing} images of '{cell.target}' are not in '{table.root}' or damaged.")
        if not thumbnails:
            return None
        shown = list(thumbnails)
        views = [
            self._view(one, verdicts, errors, shown, [paths[row] for row in shown])
            for one, (verdicts, errors) in zip(predictions, judged, strict=True)
        ]
        return Target(
            group,
            cell.split,
            cell.target,
            cell.vocabulary,
            len(keys),
            tuple(keys[row] for row in shown),
            tuple(thumbnails.values()),
            tuple(row in drawn for row in shown),
            tuple(views),
        )

    def _predictions(self, cell: CellResult) -> _Predictions | None:
        try:
            found = read_predictions(self.folder, cell.cell, cell.target)
            with reading(self.folder / RECORDS, within=self.folder):
                thresholds = np.array(cell.thresholds)
                if thresholds.shape != found.scores.shape[1:]:
                    raise ValueError(f"{cell.cell} must have a threshold for each of {found.scores.shape[1]} labels")
        except DamagedFileError as error:
            if error.reason != "is missing":
                self.notes.append(f"{error}. Copy it again, or run the cell again.")
                self.results.damaged.append(error)
            else:
                self.notes.append(
                    f"'{self.folder}' has no predictions of {self.results.titles[cell.method]}, which grids keep with "
                    "their models; make the report from the folder in which the grid was run."
                )
            return None
        return _Predictions(cell, found.scores.astype(np.float64), found.labels, found.keys, thresholds)

    def _table(self, cell: CellResult) -> SceneTable | None:
        try:
            return self.results.read_domains(cell, [cell.target], require_images=False)[cell.target]
        except (OSError, ValueError) as error:
            self.notes.append(f"The images of '{cell.target}' are not available: {error}")
            return None

    def _view(
        self,
        predictions: _Predictions,
        verdicts: Sequence[str],
        errors: NDArray[np.float64],
        rows: Sequence[int],
        paths: Sequence[Path],
    ) -> View:
        cell = predictions.cell
        return View(
            cell.cell,
            cell.method,
            self.results.titles[cell.method],
            cell.seed,
            tuple(round(float(one), 4) for one in predictions.thresholds),
            tuple(tuple(round(float(score), 4) for score in predictions.scores[row]) for row in rows),
            tuple(verdicts[row] for row in rows),
            tuple(round(float(errors[row]), 4) for row in rows),
            self._heat(cell, paths),
        )

    def _heat(self, cell: CellResult, paths: Sequence[Path]) -> tuple[tuple[str, ...], ...] | None:
        try:
            with reading(self.folder / cell.cell / WEIGHTS, within=self.folder):
                explain = Explainer(load(self.folder / cell.cell))
        except (OSError, ValueError) as error:
            title = self.results.titles[cell.method]
            self.notes.append(f"There are no heatmaps of {title} on '{cell.target}': {error}")
            return None
        found: list[tuple[str, ...]] = []
        for start in range(0, len(paths), _BATCH):
            model = explain.classifier.model
            pixels = [load_image(path, model.size, model.image_format) for path in paths[start : start + _BATCH]]
            for maps in explain(torch.from_numpy(np.stack(pixels))).maps.float():
                scaled = heatmaps(maps, size=(maps.shape[1], maps.shape[2])).numpy()
                found.append(tuple(_heat_png(one) for one in scaled))
        return tuple(found)


def _thumbnail(path: Path, shown: Sequence[int] | None) -> str | None:
    """Return an image as the model sees it, a square, as JPEG in base64; ``None`` if it cannot be read."""
    try:
        pixels = read_picture(path, THUMBNAIL, shown)
    except (OSError, ValueError):
        return None
    content = BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(content, "JPEG", quality=_JPEG_QUALITY, optimize=True)
    return b64encode(content.getvalue()).decode()


def _heat_png(heat: NDArray[np.float32]) -> str:
    """Return heat in [0, 1], (h, w), as a PNG of 16 colours from transparent to bright, in base64."""
    levels = (heat * (_LEVELS - 1)).round().astype(np.uint8)
    image = Image.frombytes("P", (heat.shape[1], heat.shape[0]), levels.tobytes())
    colours, opacity = _palette()
    image.putpalette(colours)
    content = BytesIO()
    image.save(content, "PNG", bits=4, transparency=opacity, optimize=True)
    return b64encode(content.getvalue()).decode()


@cache
def _palette() -> tuple[bytes, bytes]:
    steps = np.linspace(0, 1, _LEVELS)
    # The lower end of the colours is black, which over an image reads as shade, not as little heat.
    colours = colormaps["inferno"](0.25 + 0.75 * steps)[:, :3]
    return (colours * 255).round().astype(np.uint8).tobytes(), (steps * OPACITY * 255).astype(np.uint8).tobytes()
