"""Where the benchmark's images are: a data folder, a custom CSV, or synthetic scenes made on demand."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock

from ldstyle.benchmark.grid.presets import Preset
from ldstyle.data.domains.scene_table import file_stem
from ldstyle.runs.settings import Settings

SYNTHETIC_DATA = "synthetic"
"""Name of the synthetic data set."""


@dataclass(frozen=True)
class DataLocation:
    """The data of a grid, as every machine that takes part must find or draw them.

    Attributes:
        root: Data folder.
        cache_dir: Folder of decoded images.
        sea: What becomes of the label ``sea`` of UCM and AID.
        mapping: Label map, a YAML file.
        scenes: Scenes per domain to draw into ``root``; 0 reads what is there.
        pixels: Side of a synthetic scene in pixels.
        labels: Label columns of custom tables; empty takes all.
        ignore: Columns of custom tables that are no labels.
    """

    root: str
    cache_dir: str
    sea: Literal["drop", "water+sea"] = "drop"
    mapping: str | None = None
    scenes: int = 0
    pixels: int = 0
    labels: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def settings(self) -> Settings:
        """Return the data settings of a run, without its sources and its cache."""
        chosen = {"labels": list(self.labels), "ignore": list(self.ignore)}
        given = {name: columns for name, columns in chosen.items() if columns}
        return {"root": self.root, "sea": self.sea, "mapping": self.mapping, **given}


def find_location(
    data: str | None,
    *,
    preset: Preset,
    cache_dir: Path,
    sea: Literal["drop", "water+sea"] = "drop",
    mapping: Path | None = None,
    labels: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> DataLocation:
    """Return the location that ``data`` names.

    Args:
        data: A data folder, the CSV of a custom data set, or ``synthetic``; by default ``$LDSTYLE_DATA``.
        preset: Number and size of synthetic scenes.
        cache_dir: Folder of decoded images and of synthetic scenes.
        sea: What becomes of the label ``sea`` of UCM and AID.
        mapping: Label map, a YAML file.
        labels: Label columns of custom tables; by default all.
        ignore: Columns of custom tables that are no labels.
    """
    cache = cache_dir.expanduser().absolute()
    if data == SYNTHETIC_DATA:
        root = cache / "drawn" / f"{preset.scenes}-of-{preset.pixels}px"
        return DataLocation(str(root), str(cache), sea, scenes=preset.scenes, pixels=preset.pixels)
    path = named_path(data)
    if path is None:
        raise ValueError("Data are needed: --data DIR, --data TABLE.csv, --data synthetic, or $LDSTYLE_DATA.")
    if not path.exists():
        raise FileNotFoundError(f"There are no data '{path}'. Give a data folder, a CSV, or `--data synthetic`.")
    label_map = None if mapping is None else str(mapping.expanduser().absolute())
    folder = path.parent if path.is_file() else path
    return DataLocation(str(folder), str(cache), sea, label_map, labels=tuple(labels), ignore=tuple(ignore))


def named_path(data: str | None) -> Path | None:
    """Return the absolute path of a data folder or CSV, by default ``$LDSTYLE_DATA``; ``None`` if neither is given."""
    named = data or os.environ.get("LDSTYLE_DATA")
    return Path(named).expanduser().absolute() if named else None


@dataclass(frozen=True)
class Domains:
    """The domains of a grid.

    Attributes:
        names: Those it uses, in order.
        left_out: Those that are there as well and are not used, because nobody named them.
    """

    names: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def choose_grid_domains(data: str | None, location: DataLocation, names: Sequence[str] | None = None) -> Domains:
    """Choose the domains of the grid.

    Args:
        data: As given to :func:`find_location`; a CSV means its own domains.
        location: The location it names.
        names: The domains to use, in order. By default the official UCM, AID and DFC15 where at least two of them are
            there, or else all; a custom data set is never taken for one of them by its name.
    """
    from ldstyle.data.domains.csv import open_table
    from ldstyle.data.domains.discovery import choose_domains, find_domains, official_domains
    from ldstyle.data.domains.scene_table import fail

    if names is not None or data == SYNTHETIC_DATA:
        from ldstyle.data.synthetic import DOMAINS

        found = find_domains(Path(location.root), names) if not location.scenes else dict.fromkeys(DOMAINS)
        return Domains(tuple(choose_domains(found, names)))  # type: ignore[arg-type]
    table = named_path(data)
    if table is not None and table.is_file():
        return Domains(tuple(dict.fromkeys(open_table(table, report=fail).domains)))
    present = find_domains(Path(location.root))
    official = tuple(official_domains(present))
    if len(official) < 2:
        return Domains(tuple(present))
    return Domains(official, tuple(name for name in present if name not in official))


def search_folder(root: Path, preset: str, sources: Sequence[str]) -> Path:
    """Return the folder below ``root`` in which searches on these sources are kept."""
    return root / f"{preset}-{'+'.join(map(file_stem, sources))}"


def prepare_location(location: DataLocation, *, workers: int = 1) -> None:
    """Write the synthetic scenes of a location if they are missing; several processes may call this at once."""
    if not location.scenes:
        return
    from ldstyle.data.synthetic import write_scenes

    root = Path(location.root)
    root.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(root.with_name(f"{root.name}.lock")):
        write_scenes(root, per_domain=location.scenes, size=location.pixels, workers=workers)
