"""Prediction of image files: which are meant, and their decoding by threads while the network computes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ldstyle.data.domains.scene_table import ARRAYS, IMAGE_SUFFIXES, Progress
from ldstyle.data.loading.bands import load_image
from ldstyle.deploy.classifier import Classifier, Prediction
from ldstyle.evaluation.predict import predict
from ldstyle.nn import InsertionPoint
from ldstyle.runs.model_file import LoadedModel
from ldstyle.workers import read_ahead

STANDARD_INPUT = "-"
_PATTERN = frozenset("*?[")
_SUFFIXES = IMAGE_SUFFIXES | {ARRAYS}


def list_images(names: Iterable[str], *, standard_input: BinaryIO | None = None) -> list[Path]:
    """Expand names to image files, each once, in the order given.

    Args:
        names: Files; folders, searched at any depth for image files in the order of their names; patterns, in which
            ``**`` stands for any depth; and ``-`` for the names on standard input.
        standard_input: Holds a name per line, or names ended by NUL bytes as by ``find -print0``.

    Returns:
        The files. A name that is no folder and no pattern is taken as it is, so a missing file is found when read.

    Raises:
        FileNotFoundError: A folder or pattern holds no image.
    """
    found: dict[Path, None] = {}
    for name in names:
        if name == STANDARD_INPUT:
            if standard_input is None:
                raise ValueError("'-' stands for standard input, of which there is none. Name the images instead.")
            found |= dict.fromkeys(_listed(standard_input))
        else:
            found |= dict.fromkeys(_expanded(name))
    if not found:
        raise FileNotFoundError("No image is named. Give files, folders, patterns, or '-' for standard input.")
    return list(found)


def _listed(stream: BinaryIO) -> Iterator[Path]:
    content = stream.read()
    separator = b"\0" if b"\0" in content else b"\n"
    for line in content.split(separator):
        name = line.rstrip(b"\r") if separator == b"\n" else line
        if name.strip():
            yield from _expanded(name.decode("utf-8", errors="surrogateescape"))


def _expanded(name: str) -> list[Path]:
    path = Path(name).expanduser()
    if path.is_dir():
        matches = sorted(file for file in path.rglob("*") if _is_image(file))
    elif _PATTERN & set(name) and not path.exists():
        start = Path(path.anchor)
        matches = sorted(file for file in start.glob(str(path.relative_to(start))) if file.is_file())
    else:
        return [path]
    if not matches:
        suffixes = ", ".join(sorted(_SUFFIXES))
        raise FileNotFoundError(f"No image found by '{name}'. Folders are searched for {suffixes}.")
    return matches


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES and path.is_file()


def sheet_names(paths: Sequence[Path]) -> list[Path]:
    """Name a PNG for each image: by its own name where that is unique, else by its folders too.

    Args:
        paths: Different image files.
    """
    stems = Counter(path.stem for path in paths)
    names = [path.stem if stems[path.stem] == 1 else _flat(path) for path in paths]
    return [Path(f"{name}.png") for name in names]


def _flat(path: Path) -> str:
    parts = path.resolve().parts[1:]
    return "__".join(part.replace("__", "_") for part in parts).replace(".", "_")


_LISTED = 20
_AHEAD = 2  # batches that wait; more would only cost memory

Read: TypeAlias = NDArray[Any] | str
"""The pixels of an image, (C, S, S), or why there are none."""


@dataclass(frozen=True, eq=False)
class FilePredictions:
    """Predictions of the images that could be read.

    Attributes:
        paths: The N images.
        prediction: Predictions for them.
        style: Their style, (N, F), if requested.
        problems: Why each of the other images could not be read.
    """

    paths: tuple[Path, ...]
    prediction: Prediction
    style: Tensor | None
    problems: tuple[str, ...]


def predict_files(
    classifier: Classifier,
    paths: Sequence[Path],
    *,
    batch_size: int = 32,
    workers: int | None = None,
    skip_bad: bool = False,
    style_points: Sequence[InsertionPoint] = (),
    progress: Progress | None = None,
) -> FilePredictions:
    """Predict the labels of image files.

    Args:
        classifier: The model.
        paths: Image files.
        batch_size: How many to compute at once.
        workers: Threads that decode; by default one per core.
        skip_bad: Leave out images that cannot be read instead of failing.
        style_points: Where to read the style of the images; nowhere by default.
        progress: Called after each batch.

    Raises:
        ValueError: An image cannot be read and ``skip_bad`` is false; all such images are found and the first ones
            named. Or no image can be read at all.
    """
    problems: list[str] = []
    kept: list[Path] = []

    def readable() -> Iterator[Tensor]:
        done = 0
        for batch, pixels, wrong in read_images(paths, classifier.model, batch_size, workers or os.cpu_count() or 1):
            problems.extend(wrong)
            # After a problem the rest is only read, so that all problems are named at once.
            if pixels is not None and (skip_bad or not problems):
                kept.extend(batch)
                yield torch.from_numpy(pixels)
            done += len(batch) + len(wrong)
            if progress is not None:
                progress(done, len(paths), "images")

    batches = readable()
    first = next(batches, None)
    outputs = None if first is None else predict(classifier, chain([first], batches), style_points=style_points)
    if problems and not skip_bad:
        refuse_bad(problems)
    if outputs is None:
        refuse_all(problems)
    prediction = classifier.judge(outputs.logits)
    return FilePredictions(tuple(kept), prediction, outputs.style if style_points else None, tuple(problems))


def refuse_bad(problems: Sequence[str]) -> NoReturn:
    """Raise an error that names images that cannot be read and the way to leave them out."""
    raise ValueError(f"{_summary(problems)} Repair or remove them, or skip them with --skip-bad.")


def refuse_all(problems: Sequence[str]) -> NoReturn:
    """Raise an error: no image can be read."""
    raise ValueError(f"At least one image must be readable; none is. {_summary(problems)}")


def read_images(
    paths: Sequence[Path], model: LoadedModel, batch_size: int, workers: int
) -> Iterator[tuple[list[Path], NDArray[Any] | None, list[str]]]:
    """Yield batches of readable images with their pixels, and the problems met on the way.

    Args:
        paths: Image files.
        model: The model that takes them.
        batch_size: Most images of a batch.
        workers: Threads that decode.
    """

    def read(path: Path) -> Read:
        try:
            return load_image(path, model.size, model.image_format)
        except (ValueError, OSError) as error:
            return str(error)

    batch: list[Path] = []
    kind = "uint8" if model.image_format is None else model.image_format.stored
    channels = len(model.preprocessing.mean)
    pixels = np.empty((batch_size, channels, model.size, model.size), dtype=kind)
    problems: list[str] = []
    reads = read_ahead(read, paths, workers=workers, ahead=_AHEAD * batch_size)
    for path, result in zip(paths, reads, strict=True):
        if isinstance(result, str):
            problems.append(result)
            continue
        pixels[len(batch)] = result
        batch.append(path)
        if len(batch) == batch_size:
            yield batch, pixels, problems
            batch, problems = [], []
            pixels = np.empty_like(pixels)
    if batch or problems:
        yield batch, pixels[: len(batch)] if batch else None, problems


def _summary(problems: Sequence[str]) -> str:
    rest = len(problems) - _LISTED
    more = [f"  and {rest} more"] if rest > 0 else []
    lines = "\n".join([*(f"  {problem}" for problem in problems[:_LISTED]), *more])
    noun = "image" if len(problems) == 1 else "images"
    return f"{len(problems)} {noun} cannot be read:\n{lines}\n"
