"""The record of a finished run: its scores, and everything that determines them."""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ldstyle.files import replace_text

SCHEMA = 1
RECORD = "record.json"
_PACKAGES = ("ldstyle", "torch", "torchvision", "timm", "lightning", "numpy", "torchmetrics")


@dataclass(frozen=True)
class RunRecord:
    """Results and settings of a run.

    Attributes:
        method: Name of the method.
        sources: Domains trained on.
        seed: Seed of the run.
        scores: By part, ``validation`` and ``source_test``: ``map`` (the plain mean over the domains), ``per_domain``,
            ``ap`` by label (averaged over the domains), and the full table of each domain under ``tables``.
        thresholds: Decision threshold of each label, from pooled source-validation scores; 0.5 where these are too
            few.
        selected_epoch: Epoch of the selected model; with SWAD the last one averaged.
        selected_warmup_weight: Weight of the per-label path in that epoch; ``None`` for methods that have none.
        epochs_run: Epochs trained.
        selection: How the model was selected.
        splits: Digest of each domain's split.
        vocabulary: Label names.
        config: All settings.
        versions: Versions of Python and of the packages that matter.
        git_commit: Commit of the source tree, with ``-dirty`` if it was changed; ``None`` outside of one.
        wall_seconds: Time spent training, interruptions left out.
        peak_memory_mb: Peak memory: of the device on CUDA, of the process on the CPU; ``None`` where the system does
            not report it.
        localization: Whether the attention in use found its labels, at the end; ``None`` without masks or attention.
        untrained_labels: Labels without training data, which are predicted as unknown and left out of all scores.
        threshold_samples: Known ``positives`` and ``negatives`` of each label among the validation samples of all
            sources; a threshold is fitted only where there are enough of both.
        data: Digest of each domain's images and labels; empty in records of earlier versions.
        labels_mixed: Fraction of present labels that the per-label path restyled, by epoch; ``None`` for methods that
            have none.
        strength: Mean relative feature change at each insertion point, by epoch; ``None`` for methods without style.
        locations: Effective locations of a median map at each insertion point, as a fraction of the map, by epoch;
            ``None`` for methods without attention.
        attention: How well the selected model's maps find the labels on ``training`` and ``held-out`` images of the
            sources: by source of attention (``cam``, ``llam/POINT``), then by label, the means under ``mean``; ``None``
            without masks.
        valley: Segments that SWAD averaged: whether a valley was ``found``, its ``first`` and ``last`` segment, from 1,
            the number of ``segments`` that were validated, and the ``epochs`` in which the first and the last ended;
            ``None`` without SWAD.
        gsd: Least and largest metres per pixel of the training images as they were trained on, by source; sources of
            unknown scale are absent.
        schema: Version of this layout.
    """

    method: str
    sources: tuple[str, ...]
    seed: int
    scores: dict[str, Any]
    thresholds: dict[str, float]
    selected_epoch: int
    selected_warmup_weight: float | None
    epochs_run: int
    selection: str
    splits: dict[str, str]
    vocabulary: tuple[str, ...]
    config: dict[str, Any]
    versions: dict[str, str]
    git_commit: str | None
    wall_seconds: float
    peak_memory_mb: float | None
    localization: dict[str, Any] | None
    untrained_labels: tuple[str, ...] = ()
    threshold_samples: dict[str, dict[str, int]] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    labels_mixed: list[float] | None = None
    strength: dict[str, list[float | None]] | None = None
    locations: dict[str, list[float | None]] | None = None
    attention: dict[str, Any] | None = None
    valley: dict[str, Any] | None = None
    gsd: dict[str, tuple[float, float]] = field(default_factory=dict)
    schema: int = SCHEMA


def write_record(folder: Path, record: RunRecord) -> None:
    """Write ``record.json`` into the folder of a run."""
    content = asdict(record)
    replace_text(folder / RECORD, json.dumps({"schema": content.pop("schema"), **content}, indent=1) + "\n")


def read_record(folder: Path) -> RunRecord:
    """Read the record of a finished run."""
    path = folder / RECORD
    if not path.is_file():
        raise FileNotFoundError(f"There is no record '{path}'. Is '{folder}' a finished run?")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = content.get("schema")
        if found != SCHEMA:
            raise ValueError(f"its schema must be {SCHEMA}; got {found!r}")
        known = {field.name for field in fields(RunRecord)}
        record = RunRecord(**{key: value for key, value in content.items() if key in known})
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"'{path}' is not the record of a run: {error}") from error
    for name in ("sources", "vocabulary", "untrained_labels"):
        object.__setattr__(record, name, tuple(getattr(record, name)))
    object.__setattr__(record, "gsd", {name: tuple(values) for name, values in record.gsd.items()})
    return record


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    return {"python": platform.python_version(), **{package: metadata.version(package) for package in _PACKAGES}}


@cache
def git_commit() -> str | None:
    """Return the commit of the source tree this package is run from, or ``None`` if it is installed elsewhere."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        if not git("ls-files", Path(__file__).name):
            return None
        commit = git("rev-parse", "HEAD")
        return f"{commit}-dirty" if git("status", "--porcelain", "--untracked-files=no", str(here.parent)) else commit
    except (OSError, subprocess.SubprocessError):
        return None


def peak_memory_mb(device: torch.device) -> float | None:
    """Return the peak memory in MB: of a CUDA device, or else of this process; ``None`` where it is not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if platform.system() == "Darwin" else 2**10)
