"""Target images with true and predicted labels and where the model sees each, for the page's image browser."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image

from ldstyle.benchmark.results.comparison import best
from ldstyle.benchmark.results.reading import DamagedFileError, read_predictions, reading
from ldstyle.benchmark.results.records import RECORDS, CellResult
from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.data.loading.decode import decode
from ldstyle.deploy.classifier import load
from ldstyle.deploy.explain import Explainer, heatmaps
from ldstyle.report.advice import with_commands
from ldstyle.report.model import Absent
from ldstyle.report.order import BASELINE, ORACLE
from ldstyle.report.recorded_data import read_recorded
from ldstyle.report.sources import data_of
from ldstyle.report.tables.cells import CellSet
from ldstyle.runs.model_file import WEIGHTS
from ldstyle.seeding import derive_seed

SLUG, TITLE = "images", "Images"
IMAGES = 60
AT_RANDOM = 12
"""Images per target that are drawn instead of picked for their errors, lest one take the failures for the rule."""

THUMBNAIL = 128
HIT, MISSED, FALSE_ALARM, ABSENT, UNKNOWN = "hmfau"
"""Verdicts on a label: rightly found, overlooked, wrongly found, rightly not found, truth not known."""

OPACITY = 0.7
"""Of the greatest heat; the image stays visible below."""

_JPEG_QUALITY = 80
_LEVELS = 16  # of heat; a palette of 16 takes half a byte per place, and smooth enlarging hides the steps
_BATCH = 16


@dataclass(frozen=True)
class View:
    """What one model says about the images of a target.

    Attributes:
        cell: Name of the cell.
        method: Name of the method.
        title: The method's name in tables.
        seed: Seed of the run.
        thresholds: Decision threshold of each of the L labels.
        probabilities: By image and label, (N, L).
        verdicts: For each image a word of L letters, see ``HIT`` and the others.
        errors: For each image the number of wrong labels, plus a share below one for how wrong they are.
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
    """Images of a target and what models say about them.

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
    """All that the image browser shows.

    Attributes:
        targets: The targets.
        notes: What could not be had, and why.
    """

    targets: tuple[Target, ...]
    notes: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return it as plain values for JSON."""
        return asdict(self)


def build_browser(
    folder: Path,
    results: Sequence[CellResult],
    *,
    group: str = "",
    images: int = IMAGES,
    damaged: list[DamagedFileError] | None = None,
) -> BrowserData | Absent:
    """Gather images, predictions and heatmaps of plain training and the best method, on every target.

    Of each, the first seed that is done is shown. Most images are those that these models get most wrong, some are
    drawn at random.

    Args:
        folder: A results folder, with the folders of its cells.
        results: Cells of one grid, as read from it.
        group: What to call these results, where a page shows several.
        images: Images per target.
        damaged: Files that could not be read are added to it.

    Returns:
        The data, or why there are none.
    """
    chosen = choose_cells(results)
    if not chosen:
        return with_commands(
            Absent(SLUG, TITLE, "No run is finished yet. `ldstyle bench run` resumes those that are missing."),
            folder,
            results,
        )
    notes: list[str] = []
    bad: list[DamagedFileError] = [] if damaged is None else damaged
    targets = [_target(folder, cells, group=group, images=images, notes=notes, damaged=bad) for cells in chosen]
    found = tuple(target for target in targets if target is not None)
    if not found:
        return Absent(SLUG, TITLE, " ".join(dict.fromkeys(notes)))
    return BrowserData(found, tuple(dict.fromkeys(notes)))


def join_browsers(browsers: Iterable[BrowserData | Absent]) -> BrowserData | Absent:
    """Put the browsers of several grids into one; absent ones become notes where another is there."""
    listed = list(browsers)
    found = [one for one in listed if isinstance(one, BrowserData)]
    reasons = tuple(dict.fromkeys(one.reason for one in listed if isinstance(one, Absent)))
    if not found:
        return Absent(SLUG, TITLE, " ".join(reasons) or "There are no results.")
    targets = tuple(target for one in found for target in one.targets)
    return BrowserData(targets, tuple(dict.fromkeys([*(note for one in found for note in one.notes), *reasons])))


def choose_cells(results: Sequence[CellResult]) -> list[list[CellResult]]:
    """Choose by split the cells to look at: plain training and the best other method, each at its first seed done."""
    grid = CellSet(results).without(ORACLE)
    others = {method: grid.results.entry(method, part="all") for method in grid.methods if method != BASELINE}
    # Without a complete entry nothing is best yet; any method will do then.
    methods = list(dict.fromkeys([*([BASELINE] if BASELINE in grid.methods else []), *best(others), *others]))[:2]
    chosen = []
    for split in grid.splits:
        done = [cell for cell in grid.cells if cell.split == split and cell.status == "done"]
        firsts = [min((c for c in done if c.method == m), key=lambda c: c.seed, default=None) for m in methods]
        if any(firsts):
            # A row of the benchmark goes by its own title, also where an ablation was run under its name.
            chosen.append([replace(cell, title=grid.titles[cell.method]) for cell in firsts if cell is not None])
    return chosen


def judge(
    scores: NDArray[np.float64], labels: NDArray[np.int8], thresholds: NDArray[np.float64]
) -> tuple[list[str], NDArray[np.float64]]:
    """Judge every label of every image.

    Args:
        scores: Probabilities, (N, L).
        labels: 1 present, 0 absent, -1 unknown, (N, L).
        thresholds: A label is found where its score reaches this, (L,).

    Returns:
        A word of L verdicts per image, and its error, (N,): the number of wrong labels plus a share below one, by how
        far the wrong scores are from their thresholds.
    """
    found = scores >= thresholds
    table = np.where(labels == 1, np.where(found, HIT, MISSED), np.where(found, FALSE_ALARM, ABSENT))
    table = np.where(labels == -1, UNKNOWN, table)
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

    @property
    def thresholds(self) -> NDArray[np.float64]:
        return np.array([self.cell.record["thresholds"][name] for name in self.cell.vocabulary])


def _target(
    folder: Path,
    cells: Sequence[CellResult],
    *,
    group: str,
    images: int,
    notes: list[str],
    damaged: list[DamagedFileError],
) -> Target | None:
    found = [_read_predictions(folder, cell, notes, damaged) for cell in cells]
    predictions = [one for one in found if one is not None]
    # Models of one grid see the same images in the same order; one that does not cannot be shown beside the others.
    predictions = [one for one in predictions if one.keys == predictions[0].keys]
    if not predictions:
        return None
    cell, keys = predictions[0].cell, predictions[0].keys
    table = _read_table(cell, notes)
    if table is None:
        return None
    judged = [judge(one.scores, one.labels, one.thresholds) for one in predictions]
    rows, drawn = pick_images(
        [errors for _, errors in judged],
        count=images,
        at_random=min(AT_RANDOM, images // 4),
        seed=derive_seed("browser", cell.target),
    )
    paths = {row: table.root / keys[row] for row in rows if keys[row] in set(table.keys)}
    thumbnails = {row: text for row, path in paths.items() if (text := _thumbnail(path)) is not None}
    if len(thumbnails) < len(rows):
        notes.append(f"{len(rows) - len(thumbnails)} images of '{cell.target}' are not in '{table.root}' or damaged.")
    if not thumbnails:
        return None
    shown = list(thumbnails)
    views = [
        _view(folder, one, verdicts, errors, shown, [paths[row] for row in shown], notes)
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


def _read_predictions(
    folder: Path, cell: CellResult, notes: list[str], damaged: list[DamagedFileError]
) -> _Predictions | None:
    try:
        found = read_predictions(folder, cell.cell, cell.target)
        with reading(folder / RECORDS, within=folder):
            predictions = _Predictions(cell, found.scores.astype(np.float64), found.labels, found.keys)
            if predictions.thresholds.shape != found.scores.shape[1:]:
                raise ValueError(f"{cell.cell} must have a threshold for each of {found.scores.shape[1]} labels")
    except DamagedFileError as error:
        if error.reason != "is missing":
            notes.append(f"{error}. Copy it again, or run the cell again.")
            damaged.append(error)
            return None
        notes.append(
            f"'{folder}' has no predictions of {cell.title}, which grids keep beside their models; make the report "
            "from the folder that `ldstyle bench run` wrote."
        )
        return None
    return predictions


def _read_table(cell: CellResult, notes: list[str]) -> SceneTable | None:
    try:
        place = data_of(cell)
        (table,) = read_recorded(place, [cell.target], vocabulary=cell.vocabulary, require_images=False)
    except (OSError, ValueError) as error:
        notes.append(f"The images of '{cell.target}' are not at hand: {error}")
        return None
    return table


def _thumbnail(path: Path) -> str | None:
    """Return an image as the model sees it, a square, as JPEG in base64; ``None`` if it cannot be read."""
    try:
        pixels = decode(path, THUMBNAIL)
    except (OSError, ValueError):
        return None
    content = BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(content, "JPEG", quality=_JPEG_QUALITY, optimize=True)
    return b64encode(content.getvalue()).decode()


def _view(
    folder: Path,
    predictions: _Predictions,
    verdicts: Sequence[str],
    errors: NDArray[np.float64],
    rows: Sequence[int],
    paths: Sequence[Path],
    notes: list[str],
) -> View:
    cell = predictions.cell
    return View(
        cell.cell,
        cell.method,
        cell.title,
        cell.seed,
        tuple(round(float(one), 4) for one in predictions.thresholds),
        tuple(tuple(round(float(score), 4) for score in predictions.scores[row]) for row in rows),
        tuple(verdicts[row] for row in rows),
        tuple(round(float(errors[row]), 4) for row in rows),
        _heat(folder, cell, paths, notes),
    )


def _heat(
    folder: Path, cell: CellResult, paths: Sequence[Path], notes: list[str]
) -> tuple[tuple[str, ...], ...] | None:
    try:
        with reading(folder / cell.cell / WEIGHTS, within=folder):
            explain = Explainer(load(folder / cell.cell))
    except (OSError, ValueError) as error:
        notes.append(f"There are no heatmaps of {cell.title} on '{cell.target}': {error}")
        return None
    found: list[tuple[str, ...]] = []
    for start in range(0, len(paths), _BATCH):
        pixels = [decode(path, explain.classifier.size) for path in paths[start : start + _BATCH]]
        for maps in explain(torch.from_numpy(np.stack(pixels))).maps.float():
            scaled = heatmaps(maps, size=(maps.shape[1], maps.shape[2])).numpy()
            found.append(tuple(_heat_png(one) for one in scaled))
    return tuple(found)


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
