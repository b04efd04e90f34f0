"""Images, masks and trained models of a grid, for the figures that need more than numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ldstyle.benchmark.results.reading import DamagedFileError, reading
from ldstyle.benchmark.results.records import CellResult
from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.data.loading.decode import decode, decode_mask
from ldstyle.data.loading.splits import split_domain
from ldstyle.deploy.classifier import Classifier, load
from ldstyle.report.figures.runs import Runs, UnavailableError
from ldstyle.report.recorded_data import read_recorded
from ldstyle.report.sources import data_of
from ldstyle.runs.attention_file import ATTENTION, load_attention
from ldstyle.runs.folder import CONFIG
from ldstyle.runs.model_file import DESCRIPTION, WEIGHTS
from ldstyle.runs.settings import load_config

if TYPE_CHECKING:
    from ldstyle.nn import StyledNet

BATCH = 32


def read_tables(runs: Runs, cell: CellResult | None = None) -> dict[str, SceneTable]:
    """Read the tables of all domains of a grid from where its records say they are.

    Args:
        runs: The grid.
        cell: Whose domains to read; by default all.

    Raises:
        UnavailableError: They are not there, or not as they were.
    """
    runs.require_done()
    one = cell or runs.done[0]
    names = runs.domains if cell is None else (*cell.sources, cell.target)
    try:
        place = data_of(one)
        if not Path(place["root"]).is_dir():
            raise FileNotFoundError(f"There is no folder '{place['root']}'. Add --data DIR.")
        tables = read_recorded(place, names, vocabulary=one.vocabulary)
    except (OSError, ValueError) as error:
        raise UnavailableError(f"The images the grid was run on are needed. {error}") from error
    return {table.domain: table for table in tables}


def held_back(tables: Mapping[str, SceneTable], *, seed: int) -> dict[str, SceneTable]:
    """Return what no run of a seed was trained on: the validation and test parts of each domain."""
    kept = {}
    for name, table in tables.items():
        split = split_domain(table, seed=seed)
        kept[name] = table.select(np.sort(np.concatenate([split.validation, split.test])))
    return kept


def read_images(table: SceneTable, rows: Sequence[int], *, size: int) -> Tensor:
    """Decode images to squares, (N, 3, S, S) uint8."""
    try:
        pixels = [decode(table.path(row), size) for row in rows]
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

    @property
    def attention_kind(self) -> str | None:
        """``llam``, ``gradcam`` or ``uniform``; ``None`` for methods that have no attention."""
        return attention_kind(self.cell)


def attention_kind(cell: CellResult) -> str | None:
    """Return where a cell's attention came from; ``None`` for methods without any."""
    style = (cell.record.get("config") or {}).get("style") or {}
    name = (style.get("attention") or {}).get("name")
    return None if name is None else str(name)


def has_model(runs: Runs, cell: CellResult) -> bool:
    """Whether the files of a cell's model are there."""
    return all(runs.has(cell, name) for name in (WEIGHTS, DESCRIPTION))


def has_attention(runs: Runs, cell: CellResult) -> bool:
    """Whether a cell's learned attention was kept with its model."""
    return has_model(runs, cell) and runs.has(cell, ATTENTION)


def first_trained(runs: Runs, *preferences: Callable[[CellResult], bool]) -> CellResult | None:
    """Return the first finished cell with a model that meets the first preference that any of them meets."""
    cells = [cell for cell in runs.done if has_model(runs, cell)]
    for preferred in preferences:
        for cell in sorted(cells, key=lambda one: (list(runs.splits).index(one.split), one.seed)):
            if preferred(cell):
                return cell
    return None


def load_cell(runs: Runs, cell: CellResult) -> TrainedCell:
    """Load a finished cell's model, and its learned attention where it was kept.

    Raises:
        UnavailableError: A file is damaged.
    """
    folder = runs.folder / cell.cell
    try:
        with reading(folder / WEIGHTS, within=runs.folder):
            classifier = load(folder)
        attention = None
        if runs.has(cell, ATTENTION):
            config = load_config(folder / CONFIG)
            attention = load_attention(folder, classifier.backbone, config, num_labels=len(classifier.vocabulary))
    except DamagedFileError as error:
        runs.damaged.append(error)
        raise UnavailableError(f"The model of {cell.cell} cannot be read: {error}") from error
    except (OSError, ValueError) as error:
        raise UnavailableError(f"The model of {cell.cell} cannot be read: {error}") from error
    return TrainedCell(cell, classifier, attention)


NO_MODELS = (
    "Weights are needed, and no finished cell has them here: CELL/model.safetensors and CELL/model.json. Make the "
    "report from the folder the grid was run in."
)
