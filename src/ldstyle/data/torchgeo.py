"""Multi-label classification data sets of torchgeo as custom data sets."""

from __future__ import annotations

import inspect
import re
import warnings
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.domains.csv import DESCRIPTIVE
from ldstyle.data.domains.scene_table import Progress, file_stem
from ldstyle.data.scenes.raster import rasterio
from ldstyle.data.scenes.tile_folder import IMAGES, TABLE, TileFolder, TileRow, put, sole_writer
from ldstyle.messages import did_you_mean

SEASONS = ("winter", "spring", "summer", "autumn")
_AT_ONCE = 64
_NAMES = ("patch_id", "id", "name", "filename")
"""Columns of a data set's metadata table that name an image."""


@dataclass(frozen=True)
class ImportOptions:
    """How a data set of torchgeo is read and written.

    Attributes:
        splits: Its parts to read.
        domain_by: Meaning of a domain: a column of its metadata table (``country``), ``season`` by an image's date,
            or ``split``.
        bands: Bands to write, from 1; empty for all.
        limits: Values that become 0 and 255; images are then of 8 bits.
        arguments: Further arguments of the data set, by name.
    """

    domain_by: str
    splits: tuple[str, ...] = ("train", "val", "test")
    bands: tuple[int, ...] = ()
    limits: tuple[float, float] | None = None
    arguments: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.limits is not None and not self.limits[0] < self.limits[1]:
            raise ValueError(f"--range must be two rising numbers; got {self.limits[0]:g} {self.limits[1]:g}.")


def import_torchgeo(
    name: str, root: Path, out: Path, *, options: ImportOptions, progress: Progress | None = None
) -> tuple[Path, dict[str, int]]:
    """Write a data set of torchgeo as GeoTIFF images and ``labels.csv``; the same call resumes.

    Args:
        name: Class of torchgeo's ``datasets``, e.g. ``BigEarthNetV2``.
        root: Its folder; nothing is downloaded.
        out: Folder to write.
        options: How to read and write.
        progress: Told of the images done so far.

    Returns:
        The table, and the number of images by domain.
    """
    parts = {split: _open(name, root, split, options) for split in options.splits}
    vocabulary = _vocabulary(name, parts)
    total = sum(map(len, parts.values()))
    manifest = {"torchgeo": name, "root": str(root.resolve()), "images": total, "options": asdict(options)}
    with sole_writer(out):
        folder = TileFolder(out, manifest)
        chunks = [(split, first) for split, part in parts.items() for first in range(0, len(part), _AT_ONCE)]
        for number, (split, first) in enumerate(chunks[folder.done :], start=folder.done + 1):
            part = parts[split]
            rows = [
                _write(out, part, split, index, len(vocabulary), options)
                for index in range(first, min(first + _AT_ONCE, len(part)))
            ]
            folder.append(rows)
            if progress is not None:
                progress(number, len(chunks), "batches of images")
        folder.write_table(vocabulary, masks=False)
        counts: dict[str, int] = {}
        for row in folder.rows():
            counts[row.domain] = counts.get(row.domain, 0) + 1
    return out / TABLE, counts


def _open(name: str, root: Path, split: str, options: ImportOptions) -> Any:
    try:
        datasets = import_module("torchgeo.datasets")
    except ImportError as error:
        raise ValueError(
            "Data sets of torchgeo need the extra `torchgeo`, which is not installed. Run `pip install "
            "ldstyle[torchgeo]`."
        ) from error
    kind = getattr(datasets, name, None)
    if not inspect.isclass(kind):
        known = [each for each in dir(datasets) if inspect.isclass(getattr(datasets, each))]
        raise ValueError(f"--torchgeo must name a data set of torchgeo; got {name!r}.{did_you_mean(name, known)}")
    taken = inspect.signature(kind).parameters
    given: dict[str, Any] = {"root": str(root), "split": split, "download": False, "checksum": False}
    if name.startswith("BigEarthNet"):
        given["bands"] = "s2"
    given |= dict(options.arguments)
    try:
        return kind(**{key: value for key, value in given.items() if key in taken})
    except (datasets.DatasetNotFoundError, AssertionError) as error:
        raise FileNotFoundError(f"{name} ({split}) cannot be read from '{root}': {error}") from error


def _vocabulary(name: str, parts: dict[str, Any]) -> tuple[str, ...]:
    part = next(iter(parts.values()))
    classes = getattr(part, "classes", None) or getattr(part, "class_set", None)
    if not classes:
        raise ValueError(f"--torchgeo must be a classification data set with named classes; {name} names none.")
    return tuple(f"{each} (label)" if each in DESCRIPTIVE else str(each) for each in classes)


def _write(out: Path, part: Any, split: str, index: int, labels: int, options: ImportOptions) -> TileRow:
    sample = part[index]
    if "image" not in sample or "label" not in sample:
        raise ValueError(f"A sample must have `image` and `label`; it has {sorted(sample)}. Set --option bands=s2.")
    present = np.asarray(sample["label"])
    if present.shape != (labels,):
        raise ValueError(
            f"Labels must be one value per class, ({labels},); got shape {present.shape}. Data sets of one class per "
            "image are not multi-label."
        )
    described = _described(part, index)
    name = file_stem(next((str(described[key]) for key in _NAMES if key in described), f"{split}_{index:07d}"))
    content = _encode(_pixels(np.asarray(sample["image"]), options))
    put(out / f"{IMAGES}/{name}.tif", content)
    domain = _domain(described, split, name, options.domain_by)
    return TileRow(name, (len(content),), _scene(name), domain, tuple(int(value) for value in present))


def _described(part: Any, index: int) -> dict[str, Any]:
    """Return the row of the data set's metadata table, if it has one."""
    table: Any = getattr(part, "metadata_df", getattr(part, "metadata", None))
    return dict(table.iloc[index]) if hasattr(table, "iloc") else {}


def _domain(described: dict[str, Any], split: str, name: str, by: str) -> str:
    if by == "split":
        return split
    if by in described:
        return str(described[by])
    date = re.search(r"(?<!\d)(?:19|20)\d\d(0[1-9]|1[0-2])[0-3]\d", name)
    if by == "season" and date:
        return SEASONS[int(date[1]) % 12 // 3]
    known = [*described, "season", "split"]
    raise ValueError(f"--domain-by must be one of {known}; got {by!r}.{did_you_mean(by, known)}")


def _scene(name: str) -> str:
    """Return what an image of Sentinel-2 was cut from, by its name: its patches are neighbours; others stand alone."""
    found = re.fullmatch(r"(S2[AB]_MSIL\w+)_\d+_\d+", name)
    return found[1] if found else name


def _pixels(image: NDArray[Any], options: ImportOptions) -> NDArray[Any]:
    """Choose the bands, and bring values to 8 bits, 16 bits if they are whole numbers, or float32."""
    if options.bands:
        if not all(1 <= band <= len(image) for band in options.bands):
            raise ValueError(f"--bands must be numbers in 1 .. {len(image)}; got {list(options.bands)}.")
        image = image[[band - 1 for band in options.bands]]
    if options.limits is not None:
        low, high = options.limits
        return np.clip(np.round((image - low) * (255 / (high - low))), 0, 255).astype(np.uint8)
    whole = image.astype(np.uint16)
    return whole if np.array_equal(whole, image) else image.astype(np.float32)


def _encode(pixels: NDArray[Any]) -> bytes:
    library = rasterio()
    count, height, width = pixels.shape
    profile = {"driver": "GTiff", "count": count, "height": height, "width": width, "dtype": pixels.dtype}
    with library.io.MemoryFile() as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore", library.errors.NotGeoreferencedWarning)  # samples have no position
        with memory.open(**profile, compress="deflate", interleave="pixel") as image:
            image.write(pixels)
        return bytes(memory.getbuffer())
