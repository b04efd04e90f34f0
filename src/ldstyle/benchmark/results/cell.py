"""The typed result of one cell of a grid.

A record is a file that may be damaged or somebody else's, so each class checks the entries that it reads. Entries that
every table needs are read at once; the others are properties, so that a damaged one spoils only the items that show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from ldstyle.benchmark.results.reading import as_entries, typed
from ldstyle.data.loading.image_format import settings_shown

Status = Literal["done", "running", "failed", "missing"]


@dataclass(frozen=True)
class ScoreTable:
    """Scores on one part of the target.

    Attributes:
        map: Mean average precision.
        ap: Average precision of each label; ``None`` where no image is known to have it.
        cf1: Macro-averaged F1.
        of1: Micro-averaged F1.
        n: Number of images.
    """

    map: float | None
    ap: Mapping[str, float | None]
    cf1: float | None = None
    of1: float | None = None
    n: int | None = None

    @classmethod
    def from_entries(cls, name: str, value: object) -> ScoreTable:
        """Read a table of a record.

        Raises:
            KeyError: An entry is missing.
            TypeError: An entry is not a number.
        """
        table = as_entries(value)
        ap = {label: _number(f"{name}.{label}", found) for label, found in as_entries(table["ap"]).items()}
        numbers = {metric: _number(f"{name}.{metric}", table[metric]) for metric in ("map", "cf1", "of1")}
        return cls(**numbers, ap=ap, n=typed(f"{name}.n", table.get("n"), int, type(None)))

    def value(self, metric: str) -> float | None:
        """Return a metric by name; ``ap.LABEL`` is a label's average precision."""
        name, _, label = metric.partition(".")
        found: float | None = self.ap.get(label) if label else getattr(self, name)
        return found


@dataclass(frozen=True)
class MapScores:
    """How well maps find the labels' regions, averaged over labels.

    Attributes:
        pointing: Fraction of maps whose maximum is in the label's region.
        iou: Intersection over union of the region and equally many highest locations.
        pointing_chance: The same for a uniform map.
        iou_chance: The same for a uniform map.
        judged: Fraction of regions that had a map; ``None`` if it was not counted.
    """

    pointing: float | None
    iou: float | None
    pointing_chance: float | None
    iou_chance: float | None
    judged: float | None = None

    @classmethod
    def from_entries(cls, value: object) -> MapScores:
        """Read the means over labels; absent entries are ``None``."""
        mean = as_entries(value)
        names = ("pointing", "iou", "pointing_chance", "iou_chance")
        return cls(*(_number(name, mean.get(name)) for name in names))

    @classmethod
    def from_table(cls, value: object) -> MapScores:
        """Read a table with a row per label and their means under ``mean``."""
        table = as_entries(value)
        rows = [as_entries(row) for name, row in table.items() if name != "mean"]
        judged, missing = (sum(row.get(name) or 0 for row in rows) for name in ("n", "missing"))
        found = judged / (judged + missing) if judged + missing else None
        return replace(cls.from_entries(table["mean"]), judged=found)


@dataclass(frozen=True)
class EpochResult:
    """Scores of the model after an epoch on the target, where a run kept them.

    Attributes:
        epoch: Number of the epoch, from 1.
        map: mAP on the whole target, or on its test part where the whole was trained on.
        localization: Class activation maps; ``None`` without masks.
        attention: Learned attention by insertion point.
    """

    epoch: int
    map: float | None
    localization: MapScores | None
    attention: Mapping[str, MapScores]

    @classmethod
    def from_entries(cls, value: object) -> EpochResult:
        """Read an epoch of a record."""
        row = as_entries(value)
        scores, maps = as_entries(row["scores"]), row["localization"]
        return cls(
            typed("epoch", row["epoch"], int),
            _number("map", as_entries(scores["all"] or scores["test"])["map"]),
            MapScores.from_table(maps) if maps else None,
            _map_tables(row["attention"]),
        )


@dataclass(frozen=True)
class EpochLog:
    """A line of a run's ``metrics.jsonl``.

    Attributes:
        epoch: Number of the epoch, from 1.
        loss: Mean training loss.
        map: Mean mAP on the sources' validation parts.
        localization: Attention in use, by insertion point.
        strength: Mean relative feature change, by insertion point.
        locations: Effective locations of a median map as a fraction of the map, by insertion point.
    """

    epoch: int
    loss: float | None
    map: float | None
    localization: Mapping[str, MapScores]
    strength: Mapping[str, float | None]
    locations: Mapping[str, float | None]

    @classmethod
    def from_entries(cls, row: Mapping[str, Any]) -> EpochLog:
        """Read a line."""
        strength, locations = (as_entries(row.get(name) or {}) for name in ("strength", "locations"))
        return cls(
            typed("epoch", row["epoch"], int),
            _number("loss", row["loss"]),
            _number("validation.map", as_entries(row["validation"])["map"]),
            _map_tables(row.get("localization")),
            {point: _number("strength", value) for point, value in strength.items()},
            {point: _number("locations", value) for point, value in locations.items()},
        )


@dataclass(frozen=True)
class Machine:
    """The machine of a run; unknown entries are ``None``."""

    host: str | None
    threads: int | None


@dataclass(frozen=True)
class NetworkSettings:
    """Settings of a run that determine its network.

    Attributes:
        backbone: Name of a timm network.
        output_stride: Pixels per location of the last map; ``None`` is the network's own.
        size: Height and width of the images.
        stages: Stages with style modules.
        attention: Attention source, e.g. ``llam`` or ``gradcam``; ``None`` for methods without.
    """

    backbone: str
    output_stride: int | None
    size: int
    stages: tuple[int | str, ...]
    attention: str | None


@dataclass(frozen=True)
class RecordedData:
    """The data that a record names. Neither path may be read without the caller's consent.

    Attributes:
        root: Data folder.
        mapping: Label map.
        sea: Use of the label ``sea`` of UCM and AID.
        labels: Label columns of custom tables; empty takes all.
        ignore: Columns of custom tables that are not labels.
        synthetic: Whether the images are synthetic scenes.
    """

    root: str | None
    mapping: str | None
    sea: str
    labels: tuple[str, ...]
    ignore: tuple[str, ...]
    synthetic: bool = False


@dataclass(frozen=True)
class CellResult:
    """The result of a cell.

    Attributes:
        cell: Name of the cell.
        method: Name of the method.
        title: The method's name in tables.
        split: Name of the split.
        sources: Domains of the split to train on; the oracle trains on ``target`` instead.
        target: Domain reported on.
        seed: Seed.
        preset: Name of the preset.
        oracle: Trained on the target's own training part.
        status: ``missing`` cells may have been begun; see ``epochs``.
        scores: Tables of the target's ``test`` part (the paper's number) and of ``all`` of it (``None`` for the oracle,
            which has seen the rest); empty unless done.
        validation_map: Mean source-validation mAP, by which the model was selected.
        selected_epoch: Epoch of the selected model.
        epochs: Epochs trained so far.
        wall_seconds: Time spent training.
        splits: Digest of each domain's 80/10/10 split, the target's included.
        vocabulary: Label names.
        error: Why the last attempt failed.
        record: The record as it was read, for verification; everything else reads the typed attributes.
    """

    cell: str
    method: str
    title: str
    split: str
    sources: tuple[str, ...]
    target: str
    seed: int
    preset: str
    oracle: bool = False
    status: Status = "missing"
    scores: Mapping[str, ScoreTable | None] = field(default_factory=dict)
    validation_map: float | None = None
    selected_epoch: int | None = None
    epochs: int = 0
    wall_seconds: float | None = None
    splits: Mapping[str, str] = field(default_factory=dict)
    vocabulary: tuple[str, ...] = ()
    error: str | None = None
    record: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def trained_on(self) -> tuple[str, ...]:
        """Domains that the run was trained on."""
        return (self.target,) if self.oracle else self.sources

    def score(self, metric: str, part: str) -> float | None:
        """Return a metric on a part of the target; ``ap.LABEL`` is a label's average precision."""
        table = self.scores.get(part)
        return None if table is None else table.value(metric)

    def images(self, part: str) -> int:
        """Return the number of images that a part's scores are of; 0 if unknown."""
        table = self.scores.get(part)
        return (table.n or 0) if table is not None else 0

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """All settings of the run, or those that it was planned with."""
        return as_entries(self.record.get("config") or self.record.get("settings") or {})

    @property
    def shown(self) -> tuple[int, ...] | None:
        """Numbers of the bands that pictures of its images show; see :func:`settings_shown`."""
        data = as_entries(self.settings.get("data") or {})
        return settings_shown(tuple(data.get("bands") or ()), tuple(data.get("range") or ()))

    @cached_property
    def network(self) -> NetworkSettings | None:
        """Settings of the network; ``None`` for a cell without a record of its run."""
        if "config" not in self.record:
            return None
        config = self.settings
        backbone = as_entries(config["backbone"])
        size = as_entries(config["data"])["size"]
        return NetworkSettings(
            backbone["name"], backbone["output_stride"], size, tuple(config.get("stages") or ()), self.attention_source
        )

    @cached_property
    def attention_source(self) -> str | None:
        """``llam``, ``gradcam``, ``uniform``, ...; ``None`` for methods without attention."""
        style = as_entries(self.record.get("config") or {}).get("style") or {}
        name = (style.get("attention") or {}).get("name")
        return None if name is None else str(name)

    @property
    def no_valley(self) -> bool:
        """Whether SWAD found no valley, so that its last segment alone was averaged."""
        return as_entries(self.record.get("valley") or {}).get("found") is False

    @cached_property
    def localization(self) -> MapScores | None:
        """Class activation maps on the target; ``None`` without masks."""
        table = self.record.get("localization")
        return MapScores.from_table(table) if table else None

    @cached_property
    def attention(self) -> Mapping[str, MapScores]:
        """Learned attention on the target, by insertion point."""
        return _map_tables(self.record.get("attention"))

    @cached_property
    def attention_parts(self) -> Mapping[str, Mapping[str, MapScores]]:
        """Attention on ``training``, ``held-out`` and ``unseen`` images, by source of attention."""
        parts = as_entries(self.record.get("attention_parts") or {})
        return {
            part: {source: MapScores.from_entries(mean or {}) for source, mean in as_entries(means).items()}
            for part, means in parts.items()
        }

    @cached_property
    def by_epoch(self) -> tuple[EpochResult, ...]:
        """Scores on the target after each epoch, where the run kept them."""
        return tuple(EpochResult.from_entries(row) for row in self.record.get("epochs") or ())

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Decision threshold of each label."""
        limits = as_entries(self.record["thresholds"])
        return tuple(float(limits[name]) for name in self.vocabulary)

    def calibration_errors(self, scaling: str) -> Mapping[str, float | None]:
        """Calibration error of each label ``before`` or ``after`` temperature scaling, on the whole target if scored.

        Empty for a run that was made before calibration was judged.
        """
        judged = self.record.get("calibration") or {}
        return dict((judged.get("all") or judged.get("test") or {}).get(scaling) or {})

    @property
    def temperature(self) -> float | None:
        """Temperature fitted to the validation parts of the sources."""
        return _number("temperature", (self.record.get("calibration") or {}).get("temperature"))

    @property
    def peak_memory_mb(self) -> float | None:
        """Peak memory of the run."""
        return _number("peak_memory_mb", self.record.get("peak_memory_mb"))

    @property
    def evaluation_seconds(self) -> float:
        """Time spent evaluating."""
        return _number("evaluation_seconds", self.record.get("evaluation_seconds")) or 0.0

    @property
    def machine(self) -> Machine:
        """Where the run was made."""
        machine = as_entries(self.record.get("machine") or {})
        host, threads = machine.get("host"), machine.get("threads")
        return Machine(typed("host", host, str, type(None)), typed("threads", threads, int, type(None)))

    @property
    def data_digests(self) -> Mapping[str, str]:
        """Digest of each domain's images and labels; empty in records of earlier versions."""
        return as_entries(self.record.get("data") or {})

    @property
    def data(self) -> RecordedData | None:
        """The data that the record names, which must not be read unasked; ``None`` if it names none."""
        place = self.record.get("place")  # its name in files
        if not isinstance(place, Mapping):
            return None
        root, mapping = (None if place.get(name) is None else str(place[name]) for name in ("root", "mapping"))
        labels, ignore = (tuple(map(str, place.get(name) or ())) for name in ("labels", "ignore"))
        sea, synthetic = str(place.get("sea", "drop")), bool(place.get("scenes"))
        return RecordedData(root, mapping, sea, labels, ignore, synthetic)


def _number(name: str, value: Any) -> float | None:
    found: float | None = typed(name, value, int, float, type(None))
    return found


def _map_tables(value: object) -> dict[str, MapScores]:
    return {name: MapScores.from_table(table) for name, table in as_entries(value or {}).items()}
