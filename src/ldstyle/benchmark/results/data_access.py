"""The data that a report may read: a results folder may be a stranger's, and its records may name any file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ldstyle.benchmark.results.cell import CellResult, RecordedData
from ldstyle.data.domains.csv import LabelColumns
from ldstyle.data.domains.discovery import read_domains
from ldstyle.data.domains.scene_table import SceneTable


@dataclass(frozen=True)
class DataAccess:
    """The files outside the results folder that may be read.

    Attributes:
        root: Data folder; ``None`` if none was named.
        mapping: Label map; ``None`` if none was named.
        trust: Whether to read the data folder and the label map that the records name.
    """

    root: Path | None = None
    mapping: Path | None = None
    trust: bool = False

    def locate(self, cell: CellResult, within: Path | None) -> RecordedData:
        """Return the data of a cell with the paths that may be read.

        Args:
            cell: The cell.
            within: The results folder, whose own data may always be read.

        Raises:
            FileNotFoundError: The record names no data, or they may not be read.
        """
        data = cell.data
        if data is None or data.root is None:
            raise FileNotFoundError("The record names no data. Add --data DIR.")
        root = data.root if self.root is None else str(self.root.absolute())
        mapping = data.mapping if self.mapping is None else str(self.mapping.absolute())
        if self.trust:
            return replace(data, root=root, mapping=mapping)
        if self.root is None:
            return self._inside(data, within)
        if data.mapping is not None and self.mapping is None:
            raise FileNotFoundError(
                f"The runs used the label map {data.mapping!r}. Add --mapping FILE, or --trust-record."
            )
        return replace(data, root=root, mapping=None if self.mapping is None else mapping)

    @staticmethod
    def _inside(data: RecordedData, within: Path | None) -> RecordedData:
        named = [path for path in (data.root, data.mapping) if path is not None]
        folder = None if within is None else within.resolve()
        if folder is None or not all((folder / path).resolve().is_relative_to(folder) for path in named):
            raise FileNotFoundError(
                f"The records name {' and '.join(map(repr, named))}, outside the results folder, which is not read "
                "unasked. Add --data DIR, or --trust-record."
            )
        root, mapping = (None if path is None else str((folder / path).resolve()) for path in (data.root, data.mapping))
        return replace(data, root=root, mapping=mapping)

    def read(
        self, cell: CellResult, names: Sequence[str], *, within: Path | None, require_images: bool = True
    ) -> tuple[SceneTable, ...]:
        """Read domains as a run did.

        Args:
            cell: The cell.
            names: The domains.
            within: The results folder.
            require_images: Whether a row without an image is an error.

        Raises:
            OSError: The data may not be read, or are not there.
            ValueError: They are not as they were.
        """
        data = self.locate(cell, within)
        assert data.root is not None
        if not Path(data.root).is_dir():
            raise FileNotFoundError(f"There is no data folder '{data.root}'. Add --data DIR.")
        sea: Literal["drop", "water+sea"] = "water+sea" if data.sea == "water+sea" else "drop"
        return read_domains(
            Path(data.root),
            names,
            sea=sea,
            mapping=None if data.mapping is None else Path(data.mapping),
            vocabulary=None if data.mapping else cell.vocabulary,
            columns=LabelColumns(data.labels, data.ignore),
            require_images=require_images,
        )
