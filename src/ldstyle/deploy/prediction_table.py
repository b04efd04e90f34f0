"""Predictions as a table: CSV, JSON Lines or Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, get_args

import numpy as np
from torch import Tensor

from ldstyle.deploy.files import FilePredictions
from ldstyle.files import replace_file

Format: TypeAlias = Literal["csv", "jsonl", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def format_of(path: Path) -> Format:
    """Return the format a file's suffix stands for."""
    for name in FORMATS:
        if path.suffix.lower() == f".{name}":
            return name
    suffixes = ", ".join(f".{name}" for name in FORMATS)
    raise ValueError(f"A table must end in one of {suffixes}; got '{path.name}'. Or set --format.")


def check_format(form: Format) -> None:
    """Refuse a format whose library is not installed, before any work is done for it."""
    if form == "parquet":
        _arrow()


def render(predictions: FilePredictions, form: Format, *, shift: Tensor | None = None) -> bytes:
    r"""Return predictions as the content of a file.

    CSV and Parquet have a row per image: ``path``, ``probability_LABEL`` for each label, ``present_LABEL`` (1 or 0),
    and ``shift`` if given. JSON Lines have an object per image: ``path``, ``probabilities`` by label, ``labels``, the
    names of those present, ``unknown``, and ``shift``. Probabilities have six significant digits in text. A label
    without training data has the probability NaN (``null`` in JSON), and its presence is empty.

    A path that a spreadsheet would take for a formula begins with ``./`` in CSV. Bytes of a path that are not UTF-8 are
    kept in CSV, and written as ``\xNN`` in Parquet, whose text is always UTF-8.

    Args:
        predictions: The images and what is predicted.
        form: Format.
        shift: Fraction of source images that are nearer to the sources, by image, (N,).
    """
    match form:
        case "csv":
            return _csv(_columns(predictions, shift))
        case "jsonl":
            return _json_lines(predictions, shift)
        case "parquet":
            return _parquet(_columns(predictions, shift), predictions.prediction.vocabulary)


def write_table(content: bytes, out: Path) -> None:
    """Write a table in one step; its folder is made if missing."""

    def write(file: BinaryIO) -> None:
        file.write(content)

    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, write)


def _columns(predictions: FilePredictions, shift: Tensor | None) -> dict[str, Any]:
    names, prediction = predictions.prediction.vocabulary, predictions.prediction
    columns: dict[str, Any] = {"path": [str(path) for path in predictions.paths]}
    columns |= {f"probability_{name}": prediction.probabilities[:, i].numpy() for i, name in enumerate(names)}
    columns |= {
        f"present_{name}": [None] * len(predictions.paths)
        if name in prediction.unknown
        else prediction.present[:, i].numpy().astype(np.int8)
        for i, name in enumerate(names)
    }
    return columns if shift is None else columns | {"shift": shift.numpy()}


def _csv(columns: Mapping[str, Any]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([_cell(value) for value in row])
    # Names of files may hold bytes that are no UTF-8; they pass through unchanged.
    return text.getvalue().encode("utf-8", errors="surrogateescape")


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case np.floating():
            return f"{value:.6g}"
        case str() if value.startswith(_FORMULA):
            return f"./{value}"
        case _:
            return str(value)


def _json_lines(predictions: FilePredictions, shift: Tensor | None) -> bytes:
    prediction = predictions.prediction
    lines = []
    for row, (path, labels) in enumerate(zip(predictions.paths, prediction.labels, strict=True)):
        values = prediction.probabilities[row].tolist()
        scores = (None if math.isnan(value) else float(f"{value:.6g}") for value in values)
        entry: dict[str, Any] = {
            "path": str(path),
            "probabilities": dict(zip(prediction.vocabulary, scores, strict=True)),
            "labels": labels,
        }
        if prediction.unknown:
            entry["unknown"] = prediction.unknown
        if shift is not None:
            entry["shift"] = float(f"{shift[row].item():.6g}")
        lines.append(json.dumps(entry))
    return ("\n".join(lines) + "\n").encode()


def _parquet(columns: Mapping[str, Any], vocabulary: tuple[str, ...]) -> bytes:
    arrow, parquet = _arrow()
    paths = [os.fsencode(path).decode(errors="backslashreplace") for path in columns["path"]]
    # A list stands for an unknown label; arrow would not know the type of its values.
    unknown = {
        name: arrow.nulls(len(paths), arrow.int8())
        for name, column in columns.items()
        if name.startswith("present_") and isinstance(column, list)
    }
    table = arrow.table({**columns, **unknown, "path": paths})
    table = table.replace_schema_metadata({"vocabulary": json.dumps(vocabulary)})
    content = io.BytesIO()
    parquet.write_table(table, content)
    return content.getvalue()


def _arrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ValueError(
            "Parquet needs the package pyarrow, which is not installed. Run `pip install 'ldstyle[parquet]'`, or "
            "choose csv or jsonl."
        ) from error
