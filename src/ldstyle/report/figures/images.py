"""Images, masks and trained models of a grid, for the figures that need them, and the figure of class samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.reading import DamagedFileError, reading
from ldstyle.benchmark.results.view import Results
from ldstyle.data.domains.samples import class_samples, pick_samples
from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.data.loading.bands import load_image, read_picture
from ldstyle.data.loading.decode import decode_mask
from ldstyle.data.loading.splits import split_domain
from ldstyle.deploy.classifier import Classifier, load
from ldstyle.report.figures.style import Plate, UnavailableError, require_done
from ldstyle.runs.folder import CONFIG
from ldstyle.runs.model_file import DESCRIPTION, WEIGHTS, LoadedModel
from ldstyle.runs.settings import load_config
from ldstyle.runs.weights import ATTENTION, load_attention

if TYPE_CHECKING:
    from ldstyle.nn import StyledNet

BATCH = 32
NO_MODELS = (
    "Weights are needed, and no finished cell has them here: CELL/model.safetensors and CELL/model.json. Make the "
    "report from the folder the grid was run in."
)

_LABELS = 12
"""Most labels that are shown; of more, the most frequent ones."""

_COLUMNS = 9
_PIXELS = 128


def read_tables(results: Results, cell: CellResult | None = None) -> dict[str, SceneTable]:
    """Read the tables of the domains of a cell, by default of all domains of the grid.

    Raises:
        UnavailableError: They are not there, or not as they were.
    """
    require_done(results)
    grid = results.main
    names = [name for name in grid.domains if cell is None or name in (*cell.sources, cell.target)]
    try:
        return results.read_domains(cell or grid.done[0], names)
    except (OSError, ValueError) as error:
        raise UnavailableError(f"The images of the runs are needed. {error}") from error


def unseen(tables: Mapping[str, SceneTable], cell: CellResult) -> dict[str, SceneTable]:
    """Return the images that a run was not trained on: the whole target, and validation and test parts of sources."""
    kept = {}
    for name, table in tables.items():
        split = split_domain(table, seed=cell.seed)
        rows = np.sort(np.concatenate([split.validation, split.test]))
        kept[name] = table.select(rows) if name in cell.trained_on else table
    return kept


def read_images(table: SceneTable, rows: Sequence[int], model: LoadedModel) -> Tensor:
    """Decode images as a model takes them, (N, C, S, S)."""
    return _stacked(lambda path: load_image(path, model.size, model.image_format), table, rows, model.size)


def read_pictures(table: SceneTable, rows: Sequence[int], *, size: int, shown: Sequence[int] | None = None) -> Tensor:
    """Read images to look at, (N, 3, S, S) uint8; see :func:`~ldstyle.data.loading.bands.read_picture`."""
    return _stacked(lambda path: read_picture(path, size, shown), table, rows, size)


def _stacked(read: Callable[[Path], NDArray[Any]], table: SceneTable, rows: Sequence[int], size: int) -> Tensor:
    try:
        pixels = [read(table.path(row)) for row in rows]
    except (OSError, ValueError) as error:
        raise UnavailableError(f"An image cannot be read: {error}") from error
    return torch.from_numpy(np.stack(pixels)) if pixels else torch.empty(0, 3, size, size, dtype=torch.uint8)


def read_regions(table: SceneTable, rows: Sequence[int], *, size: int) -> NDArray[np.bool_] | None:
    """Read where each label is, (N, L, S, S); ``None`` if one of the samples has no mask."""
    if table.masks is None or any(table.masks[row] is None for row in rows):
        return None
    try:
        bits = [decode_mask(table.root / str(table.masks[row]), size) for row in rows]
    except (OSError, ValueError) as error:
        raise UnavailableError(f"A mask cannot be read: {error}") from error
    return table.regions(np.stack(bits)) if bits else None


@dataclass(frozen=True, eq=False)
class TrainedCell:
    """A finished cell with its model.

    Attributes:
        cell: The cell.
        classifier: Its model.
        attention: The model with its learned attention, where the method learns one and the run kept it.
    """

    cell: CellResult
    classifier: Classifier
    attention: StyledNet | None = None


def has_model(results: Results, cell: CellResult) -> bool:
    """Whether the files of a cell's model exist."""
    return all(results.has(cell, name) for name in (WEIGHTS, DESCRIPTION))


def has_attention(results: Results, cell: CellResult) -> bool:
    """Whether a cell's learned attention was kept with its model."""
    return has_model(results, cell) and results.has(cell, ATTENTION)


def first_trained(results: Results, *preferences: Callable[[CellResult], bool]) -> CellResult | None:
    """Return the first finished cell with a model that meets the first preference that any of them meets."""
    cells = [cell for cell in results.main.done if has_model(results, cell)]
    # The cells are in order of split, then method; seeds come before methods here.
    cells.sort(key=lambda cell: (results.splits.index(cell.split), cell.seed))
    return next((cell for preferred in preferences for cell in cells if preferred(cell)), None)


def load_cell(results: Results, cell: CellResult) -> TrainedCell:
    """Load a finished cell's model, and its learned attention where it was kept.

    Raises:
        UnavailableError: A file is damaged.
    """
    assert results.folder is not None
    folder = results.folder / cell.cell
    try:
        with reading(folder / WEIGHTS, within=results.folder):
            classifier = load(folder)
        attention = None
        if results.has(cell, ATTENTION):
            config = load_config(folder / CONFIG)
            attention = load_attention(folder, classifier.backbone, config, num_labels=len(classifier.vocabulary))
    except DamagedFileError as error:
        results.damaged.append(error)
        raise UnavailableError(f"The model of {cell.cell} cannot be read: {error}") from error
    except (OSError, ValueError) as error:
        raise UnavailableError(f"The model of {cell.cell} cannot be read: {error}") from error
    return TrainedCell(cell, classifier, attention)


def class_samples_figure(results: Results) -> Plate:
    """Draw samples of each label, a row per label and a block of columns per domain."""
    tables = _most_frequent(list(read_tables(results).values()))
    per_cell = max(1, min(3, _COLUMNS // len(tables)))
    known = len(results.main.done[0].vocabulary)
    shown = tables[0].vocabulary
    caption = (
        f"Images of each label in each domain, up to {per_cell} per label, drawn at random from all "
        f"{', '.join(f'{len(table):,} images of {table.domain}' for table in tables)} that have it "
        "(where a domain sorts its images into folders, from those in which the label is most frequent). An image may "
        f"have other labels too.{f' The {len(shown)} most frequent of {known} labels.' if len(shown) < known else ''}"
    )

    bands = results.main.done[0].shown
    data = {
        table.domain: {
            "images": len(table),
            "shown": {
                label: [table.keys[row] for row in rows]
                for label, rows in zip(shown, pick_samples(table, per_cell=per_cell), strict=True)
            },
        }
        for table in tables
    }
    return Plate(
        caption, lambda: class_samples(tables, per_cell=per_cell, size=_PIXELS, shown=bands), data, photographic=True
    )


def _most_frequent(tables: list[SceneTable]) -> list[SceneTable]:
    """Leave out the labels that are rare over all domains, where there are too many for one figure."""
    frequency = sum((table.labels == 1).mean(axis=0) for table in tables)
    if len(tables[0].vocabulary) <= _LABELS:
        return tables
    kept = np.sort(np.argsort(-np.asarray(frequency), kind="stable")[:_LABELS])
    return [_only(table, kept.tolist()) for table in tables]


def _only(table: SceneTable, labels: list[int]) -> SceneTable:
    names = tuple(table.vocabulary[label] for label in labels)
    return replace(table, vocabulary=names, labels=table.labels[:, labels].copy(), masks=None, mask_bits=None)
