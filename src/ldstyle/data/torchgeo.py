"""Multi-label classification data sets of torchgeo as custom data sets."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.domains.csv import DESCRIPTIVE
from ldstyle.data.domains.scene_table import Progress, file_stem
from ldstyle.data.loading.image_format import DTYPES
from ldstyle.data.scenes.raster import rasterio
from ldstyle.data.scenes.tile_folder import IMAGES, TABLE, TileFolder, TileRow, put, sole_writer
from ldstyle.messages import did_you_mean

SPLITS = ("train", "val", "test")
SEASONS = ("winter", "spring", "summer", "autumn")
_AT_ONCE = 64
_TASK = "multi-label"
"""Task of data sets that have several, whose labels are then numbers of classes."""
_NAMES = ("patch_id", "id", "name", "filename")
"""Columns of a data set's metadata table that name an image."""


@dataclass(frozen=True)
class ImportOptions:
    """How a data set of torchgeo is read and written.

    Attributes:
        domain_by: Meaning of a domain: a column of its metadata table (``country``), ``season`` by an image's date,
            or ``split``.
        splits: Its splits to read; empty for all of ``train``, ``val`` and ``test`` that it has.
        bands: Bands to write, from 1; empty for all.
        limits: Values that become 0 and 255; images are then written in 8 bits.
        dtype: Type of the values written, one of :data:`~ldstyle.data.loading.image_format.DTYPES`; ``None`` for the
            smallest that holds those of the first image.
        arguments: Further arguments of the data set, by name.
    """

    domain_by: str
    splits: tuple[str, ...] = ()
    bands: tuple[int, ...] = ()
    limits: tuple[float, float] | None = None
    dtype: str | None = None
    arguments: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.limits is not None and not self.limits[0] < self.limits[1]:
            raise ValueError(f"--range must be two rising numbers; got {self.limits[0]:g} {self.limits[1]:g}.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ValueError(f"--dtype must be one of {', '.join(DTYPES)}; got {self.dtype}.")
        if self.limits is not None and self.dtype not in (None, "uint8"):
            raise ValueError(f"--dtype must be uint8 or left out together with --range; got {self.dtype}.")


def import_torchgeo(
    name: str, root: Path, out: Path, *, options: ImportOptions, progress: Progress | None = None
) -> tuple[Path, dict[str, int]]:
    """Write a data set of torchgeo as GeoTIFF images and ``labels.csv``; the same call resumes.

    Args:
        name: Class of torchgeo's ``datasets``, e.g. ``BigEarthNetV2``.
        root: Its folder; nothing is downloaded.
        out: Folder to write.
        options: How to read and write.
        progress: Called with the batches of images written so far.

    Returns:
        The table, and the number of images by domain.
    """
    kind = _find(name)
    parts = {split: _open(kind, root, split, options) for split in options.splits or _splits(kind)}
    classes = {split: _classes(name, part) for split, part in parts.items()}
    vocabulary = tuple(dict.fromkeys(each for known in classes.values() for each in known))
    total = sum(map(len, parts.values()))
    manifest = {"torchgeo": name, "root": str(root.resolve()), "images": total, "options": asdict(options)}
    with sole_writer(out):
        folder = TileFolder(out, manifest)
        chunks = [(split, first) for split, part in parts.items() for first in range(0, len(part), _AT_ONCE)]
        taken = {row.name.casefold() for row in folder.rows()}
        writer = _Writer(out, vocabulary, _settled(parts, options), taken)
        for number, (split, first) in enumerate(chunks[folder.done :], start=folder.done + 1):
            part = parts[split]
            indices = range(first, min(first + _AT_ONCE, len(part)))
            folder.append([writer.write(part, split, classes[split], index) for index in indices])
            if progress is not None:
                progress(number, len(chunks), "batches of images")
        folder.write_table([_column(each) for each in vocabulary], masks=False)
        counts: dict[str, int] = {}
        for row in folder.rows():
            counts[row.domain] = counts.get(row.domain, 0) + 1
    return out / TABLE, counts


def _find(name: str) -> Any:
    """Return a class of torchgeo's data sets."""
    try:
        datasets = import_module("torchgeo.datasets")
    except ImportError as error:
        # torchgeo 0.8.1 imports `requests` without requiring it, so the missing package may be another one.
        raise ValueError(
            "Data sets of torchgeo need the extra `torchgeo`, which is not installed or not complete "
            f"({error}). Run `pip install ldstyle[torchgeo]`."
        ) from error
    kind = getattr(datasets, name, None)
    if not inspect.isclass(kind):
        known = [each for each in dir(datasets) if inspect.isclass(getattr(datasets, each))]
        raise ValueError(f"--torchgeo must name a data set of torchgeo; got {name!r}.{did_you_mean(name, known)}")
    return kind


def _splits(kind: Any) -> tuple[str, ...]:
    """Return which of the usual splits a data set has, as far as its class lists them."""
    listed = getattr(kind, "valid_splits", None) or getattr(kind, "splits", None) or SPLITS
    return tuple(split for split in SPLITS if split in listed) or SPLITS


def _open(kind: Any, root: Path, split: str, options: ImportOptions) -> Any:
    taken = inspect.signature(kind).parameters
    given: dict[str, Any] = {"root": str(root), "split": split, "download": False, "checksum": False}
    given["task"] = _TASK
    if kind.__name__.startswith("BigEarthNet"):
        given["bands"] = "s2"
    for key, text in options.arguments:
        if key not in taken:
            known = [each for each in taken if each not in ("root", "split", "transforms", "download")]
            raise ValueError(f"--option must be one of {known}; got {key!r}.{did_you_mean(key, known)}")
        given[key] = _typed(key, text, taken[key].default)
    missing = import_module("torchgeo.datasets").DatasetNotFoundError
    try:
        return kind(**{key: value for key, value in given.items() if key in taken})
    except (missing, AssertionError, FileNotFoundError) as error:
        raise FileNotFoundError(
            f"{kind.__name__} ({split}) cannot be read from '{root}': {str(error) or 'a setting is refused'}. Its "
            "splits are chosen by --splits."
        ) from error


def _typed(key: str, text: str, default: object) -> Any:
    """Return the text of an option as a value of the type of its default."""
    if isinstance(default, (tuple, list)):
        return tuple(text.split(","))
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(f"--option {key} must be true or false; got {text!r}.")
        return text.lower() == "true"
    if not isinstance(default, (int, float)):
        return text
    try:
        return type(default)(text)
    except ValueError:
        raise ValueError(f"--option {key} must be a number; got {text!r}.") from None


def _classes(name: str, part: Any) -> tuple[str, ...]:
    sets = getattr(part, "class_sets", {})
    found = getattr(part, "classes", None) or getattr(part, "class_set", None)
    found = found or sets.get(getattr(part, "num_classes", None))
    if not found:
        raise ValueError(f"--torchgeo must be a classification data set with named classes; {name} names none.")
    return tuple(map(str, found))


def _column(name: str) -> str:
    """Return the column of a label, which may not be called like one of the others."""
    return f"{name} (label)" if name in DESCRIPTIVE else name


def _settled(parts: dict[str, Any], options: ImportOptions) -> ImportOptions:
    """Return options with the type of the values, so that all images are written alike."""
    if options.dtype is not None or options.limits is not None:
        return options
    first = next((part for part in parts.values() if len(part)), None)
    if first is None:
        return options
    values = _choose_bands(_image(first[0]), options.bands)
    fits = (kind for kind in DTYPES if values.dtype == np.uint8 or kind != "uint8")
    return replace(options, dtype=next(kind for kind in fits if _holds(values, kind)))


@dataclass(frozen=True)
class _Writer:
    """Writes samples as images.

    Attributes:
        out: The folder.
        vocabulary: Labels of all splits.
        options: How to write.
        taken: Names of the files written so far, without regard to case.
    """

    out: Path
    vocabulary: tuple[str, ...]
    options: ImportOptions
    taken: set[str]

    def write(self, part: Any, split: str, classes: Sequence[str], index: int) -> TileRow:
        """Write an image and return its row."""
        sample = part[index]
        image = _image(sample)
        found = _present(np.asarray(sample.get("label")), classes, numbers=getattr(part, "task", None) == _TASK)
        described = _described(part, index)
        stem = file_stem(_name(part, described, split, index))
        name = self._unused(stem)
        content = _encode(_pixels(image, self.options, name))
        put(self.out / f"{IMAGES}/{name}.tif", content)
        self.taken.add(name.casefold())
        domain = _domain(described, split, stem, self.options.domain_by)
        # A split may lack classes of another: they are unknown there.
        labels = tuple(int(each in found) if each in classes else -1 for each in self.vocabulary)
        # Images of one name may show the same: in one scene, no split of the data separates them.
        return TileRow(name, (len(content),), _scene(stem), domain, labels)

    def _unused(self, stem: str) -> str:
        """Return a file name without suffix: a number is added where another image has the same."""
        name, number = stem, 1
        while name.casefold() in self.taken:
            number += 1
            name = f"{stem}~{number}"
        return name


def _image(sample: dict[str, Any]) -> NDArray[Any]:
    """Return the image of a sample, which is called ``image`` or ``image_SENSOR``."""
    named = [key for key in sample if key == "image" or key.startswith("image_")]
    if len(named) != 1:
        raise ValueError(
            f"A sample must have one image; it has {sorted(sample)}. Choose a sensor, e.g. --option bands=s2 for "
            "BigEarthNet or --option sensors=s2 for TreeSatAI."
        )
    return np.asarray(sample[named[0]])


def _present(label: NDArray[Any], classes: Sequence[str], *, numbers: bool) -> set[str]:
    """Return the classes of a sample from their numbers, or else from a value of 0 or 1 for each class."""
    if numbers and label.ndim == 1 and np.isin(label, np.arange(len(classes))).all():
        return {classes[number] for number in label}
    if not numbers and label.shape == (len(classes),) and np.isin(label, (0, 1)).all():
        return {name for name, value in zip(classes, label, strict=True) if value}
    raise ValueError(
        f"Labels must be 0 or 1 for each of {len(classes)} classes; got shape {label.shape}. Data sets of one class "
        "per image are not multi-label."
    )


def _described(part: Any, index: int) -> dict[str, Any]:
    """Return the row of the data set's metadata table, if it has one."""
    table: Any = getattr(part, "metadata_df", getattr(part, "metadata", None))
    return dict(table.iloc[index]) if hasattr(table, "iloc") else {}


def _name(part: Any, described: dict[str, Any], split: str, index: int) -> str:
    """Return the name of an image by the data set's metadata, else by its folder, else by its split and file."""
    for key in _NAMES:
        if key in described:
            return str(described[key])
    folders, files = getattr(part, "folders", None), getattr(part, "files", None)
    if folders and isinstance(folders[index], dict) and "s2" in folders[index]:
        return Path(folders[index]["s2"]).name
    if not files:
        return f"{split}_{index:07d}"
    file = files[index]["image"] if isinstance(files[index], dict) else files[index]
    return f"{split}_{Path(file).stem}"


def _domain(described: dict[str, Any], split: str, name: str, by: str) -> str:
    if by == "split":
        return split
    if by in described:
        return str(described[by])
    date = re.search(r"(?<!\d)(?:19|20)\d\d(0[1-9]|1[0-2])[0-3]\d", name)
    if by == "season" and date:
        return SEASONS[int(date[1]) % 12 // 3]
    known = [*described, *(["season"] if date else []), "split"]
    raise ValueError(f"--domain-by must be one of {known}; got {by!r}.{did_you_mean(by, known)}")


def _scene(name: str) -> str:
    """Return the Sentinel-2 tile that a patch was cut from, by its name; any other image is a separate scene."""
    found = re.fullmatch(r"(S2[AB]_MSIL\w+)_\d+_\d+", name)
    return found[1] if found else name


def _choose_bands(image: NDArray[Any], bands: Sequence[int]) -> NDArray[Any]:
    if not bands:
        return image
    if not all(1 <= band <= len(image) for band in bands):
        raise ValueError(f"--bands must be numbers in 1 .. {len(image)}; got {list(bands)}.")
    return image[[band - 1 for band in bands]]


def _holds(values: NDArray[Any], dtype: str) -> bool:
    """Return whether a type holds these values unchanged."""
    if dtype == "float32":
        return True
    limits = np.iinfo(dtype)
    return bool(np.isfinite(values).all() and np.array_equal(np.round(values).clip(limits.min, limits.max), values))


def _pixels(image: NDArray[Any], options: ImportOptions, name: str) -> NDArray[Any]:
    """Choose the bands and bring their values to the type that is written."""
    image = _choose_bands(image, options.bands)
    if options.limits is not None:
        low, high = options.limits
        return np.clip(np.round((image - low) * (255 / (high - low))), 0, 255).astype(np.uint8)
    assert options.dtype is not None
    if not _holds(image, options.dtype):
        raise ValueError(
            f"Values of '{name}' from {np.min(image):g} to {np.max(image):g} do not fit --dtype {options.dtype}, the "
            "type of the first image. Set --dtype float32, or --range LOW HIGH, and another --out."
        )
    return image.astype(options.dtype)


def _encode(pixels: NDArray[Any]) -> bytes:
    library = rasterio()
    count, height, width = pixels.shape
    profile = {"driver": "GTiff", "count": count, "height": height, "width": width, "dtype": pixels.dtype}
    with library.io.MemoryFile() as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore", library.errors.NotGeoreferencedWarning)  # samples have no position
        with memory.open(**profile, compress="deflate", interleave="pixel") as image:
            image.write(pixels)
        return bytes(memory.getbuffer())
